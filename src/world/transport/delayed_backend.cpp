#include "world/transport/delayed_backend.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <thread>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class DelayedWork final : public c10d::Work {
 public:
  DelayedWork(WorkPtr inner, Clock::time_point done) : inner_(std::move(inner)), done_(done) {}

  bool isCompleted() override { return Clock::now() >= done_ && inner_->isCompleted(); }
  bool isSuccess() const override { return Clock::now() >= done_ && inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void abort() override { inner_->abort(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool arrived = inner_->wait(timeout);
    std::this_thread::sleep_until(done_);
    return arrived;
  }

  void synchronize() override {
    inner_->synchronize();
    std::this_thread::sleep_until(done_);
  }

 private:
  WorkPtr inner_;
  Clock::time_point done_;
};

std::int64_t bytes_of(const at::Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

std::int64_t bytes_of(const Tensors& list) {
  std::int64_t sum = 0;
  for (const at::Tensor& t : list) sum += bytes_of(t);
  return sum;
}

class DelayedBackend final : public c10d::Backend {
 public:
  DelayedBackend(intarsia::Backend inner, const WireDelay& delay)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), delay_(delay) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  // What a rank keeps does not travel. A reduction to all is counted as one way of its bytes.
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return delayed(bytes_of(t), [&] { return inner_->allreduce(t, o); });
  }
  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return delayed(bytes_of(t), [&] { return inner_->broadcast(t, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return delayed(bytes_of(out) - bytes_of(in),
                   [&] { return inner_->_allgather_base(out, in, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return delayed(bytes_of(in) - bytes_of(out),
                   [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_counts,
                        std::vector<std::int64_t>& in_counts,
                        const c10d::AllToAllOptions& o) override {
    return delayed(std::max(foreign(in, in_counts), foreign(out, out_counts)),
                   [&] { return inner_->alltoall_base(out, in, out_counts, in_counts, o); });
  }
  WorkPtr send(Tensors& t, int to, int tag) override {
    return delayed(
        bytes_of(t), [&] { return inner_->send(t, to, tag); }, kOut);
  }
  WorkPtr recv(Tensors& t, int from, int tag) override {
    return delayed(
        bytes_of(t), [&] { return inner_->recv(t, from, tag); }, kIn);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return delayed(0, [&] { return inner_->barrier(o); });
  }

 private:
  enum Direction : unsigned { kOut = 1, kIn = 2 };

  /// The bytes of an all-to-all that go to other ranks, or come from them. `counts`: of rows by
  /// rank; empty where all are alike.
  std::int64_t foreign(const at::Tensor& t, const std::vector<std::int64_t>& counts) const {
    const std::int64_t bytes = bytes_of(t);
    if (counts.empty() || t.size(0) == 0) return bytes - bytes / getSize();
    return bytes - bytes / t.size(0) * counts[static_cast<std::size_t>(getRank())];
  }

  /// A wire sends and receives at the same time; a collective does both.
  template <class Start>
  WorkPtr delayed(std::int64_t bytes, const Start& start, unsigned directions = kOut | kIn) {
    const std::chrono::duration<double> sending(
        delay_.bytes_per_second > 0 ? static_cast<double>(bytes) / delay_.bytes_per_second : 0.0);
    const std::scoped_lock lock(mutex_);
    WorkPtr work = start();
    Clock::time_point done = Clock::now();
    if ((directions & kOut) != 0) done = std::max(done, sent_);
    if ((directions & kIn) != 0) done = std::max(done, received_);
    done += delay_.latency + std::chrono::duration_cast<Clock::duration>(sending);
    if ((directions & kOut) != 0) sent_ = done;
    if ((directions & kIn) != 0) received_ = done;
    return c10::make_intrusive<DelayedWork>(std::move(work), done);
  }

  intarsia::Backend inner_;
  WireDelay delay_;
  std::mutex mutex_;
  Clock::time_point sent_;      // when all that was given to the wire is sent
  Clock::time_point received_;  // likewise
};

}  // namespace

Backend delay_backend(Backend inner, const WireDelay& delay) {
  if (delay.latency.count() < 0 || !(delay.bytes_per_second >= 0)) {
    fail<ValueError>("World", "a wire is delayed by no less than 0, not by ", delay.latency.count(),
                     " us and ", delay.bytes_per_second, " bytes per second");
  }
  return c10::make_intrusive<DelayedBackend>(std::move(inner), delay);
}

std::optional<WireDelay> read_wire_delay(const Environment& environment) {
  const auto text = environment("INTARSIA_WIRE_DELAY");
  if (!text) return std::nullopt;
  Cursor cursor("INTARSIA_WIRE_DELAY", *text);
  WireDelay delay;
  delay.latency = std::chrono::microseconds(cursor.integer());
  cursor.expect(",");
  delay.bytes_per_second = cursor.number();
  cursor.end();
  return delay;
}

}  // namespace intarsia
