#include "world/guard/guarded_backend.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/guard/guarded_wait.h"
#include "world/guard/program.h"
#include "world/transport/away.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Counts = std::vector<std::int64_t>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;
using GroupPtr = std::shared_ptr<GuardedGroup>;

/// Looks at the other ranks for those who wait for a future and cannot look themselves: one thread,
/// which ends with the last backend.
class Lookout {
 public:
  static std::shared_ptr<Lookout> shared() {
    static std::mutex mutex;
    static std::weak_ptr<Lookout> known;
    const std::scoped_lock lock(mutex);
    auto lookout = known.lock();
    if (!lookout) known = lookout = std::make_shared<Lookout>();
    return lookout;
  }

  Lookout() : thread_([this] { run(); }) {}
  ~Lookout() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  /// Asks from time to time, until the answer is that nothing is left to look for.
  void add(std::function<bool()> is_over) {
    const std::scoped_lock lock(mutex_);
    watched_.push_back(std::move(is_over));
  }
  /// Asks now.
  void hurry() {
    {
      const std::scoped_lock lock(mutex_);
      hurries_ = true;
    }
    wake_.notify_all();
  }

 private:
  void run() {
    constexpr std::chrono::milliseconds kPause{250};
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait_for(lock, kPause, [this] { return ends_ || hurries_; });
      if (ends_) return;
      hurries_ = false;
      std::list<std::function<bool()>> now;
      now.swap(watched_);
      lock.unlock();
      now.remove_if([](const std::function<bool()>& is_over) { return is_over(); });
      lock.lock();
      watched_.splice(watched_.begin(), now);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  bool hurries_ = false;
  std::list<std::function<bool()>> watched_;
  std::thread thread_;
};

/// A call that this rank made.
struct Made {
  GroupPtr group;
  std::uint64_t number = 0;
  std::string name;
  std::uint64_t event = 0;  // for the times of the program
  std::int64_t begin = 0;

  /// Throws what the guard knows of the call, which failed, or what the backend says of it.
  [[noreturn]] void explain(const std::exception_ptr& why) const {
    group->explain(number);
    const std::string missing = group->missing(number);
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      if (missing.empty()) throw;
      fail<WorldError>(name, "did not finish: ", missing, " (", text_of(error), ")");
    }
  }
};

/// The future of a call, which is told once what became of it: by the backend, or by the guard
/// before it. THREADS: any.
class Outcome {
 public:
  Outcome(FuturePtr told, Made call) : told_(std::move(told)), call_(std::move(call)) {}

  /// The backend has ended the call. False: with an error, for which the reason is to be looked:
  /// that may take a moment, and this is a backend's thread.
  bool end(Future& inner) {
    if (inner.hasError()) {
      const std::scoped_lock lock(mutex_);
      error_ = inner.exception_ptr();
      return false;
    }
    try {
      call_.group->compare(call_.number);
      Program::instance().ended(call_.event, call_.begin);
      if (!is_told_.exchange(true)) told_->markCompleted(inner.value());
    } catch (const GuardError&) {
      fail(std::current_exception());
    }
    return true;
  }

  /// Looks at the other ranks. Whether nothing is left to look for.
  bool look() {
    if (is_told_) return true;
    std::exception_ptr error;
    {
      const std::scoped_lock lock(mutex_);
      error = error_;
    }
    try {
      if (error) call_.explain(error);
      call_.group->look(call_.number);
      return false;
    } catch (...) {
      fail(std::current_exception());
      return true;
    }
  }

 private:
  void fail(const std::exception_ptr& error) {
    if (!is_told_.exchange(true)) told_->setError(error);
  }

  FuturePtr told_;
  Made call_;
  std::atomic<bool> is_told_ = false;
  std::mutex mutex_;
  std::exception_ptr error_;
};

class GuardedWork final : public c10d::Work {
 public:
  /// `in_slices`: a wait may end before the call does, and begin again.
  GuardedWork(WorkPtr inner, Made call, std::shared_ptr<Lookout> lookout, bool in_slices)
      : c10d::Work(-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        call_(std::move(call)),
        lookout_(std::move(lookout)),
        in_slices_(in_slices) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  FuturePtr getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

  bool wait(std::chrono::milliseconds limit) override {
    const Away away;
    const Waiting waiting;
    try {
      if (in_slices_) {
        wait_in_slices(*inner_, *call_.group, call_.number, limit);
      } else {
        inner_->wait(limit);
      }
      call_.group->compare(call_.number);
    } catch (const GuardError&) {
      throw;
    } catch (const std::exception&) {
      call_.explain(std::current_exception());
    }
    return true;
  }

  FuturePtr getFuture() override {
    const FuturePtr inner = inner_->getFuture();
    auto told = c10::make_intrusive<Future>(inner->elementType(), inner->devices());
    const auto outcome = std::make_shared<Outcome>(told, call_);
    lookout_->add([outcome] { return outcome->look(); });
    inner->addCallback([outcome, lookout = std::weak_ptr(lookout_)](Future& ended) {
      if (outcome->end(ended)) return;
      if (const auto still_there = lookout.lock()) still_there->hurry();
    });
    return told;
  }

 private:
  WorkPtr inner_;
  Made call_;
  std::shared_ptr<Lookout> lookout_;
  bool in_slices_;
};

/// What must be equal of tensors: `Float [8, 4]`, `Float [8], Long [2, 2]`
std::string kinds_of(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& t : tensors) {
    text += concat(text.empty() ? "" : ", ", c10::toString(t.scalar_type()), " [", join(t.sizes()),
                   "]");
  }
  return text;
}

std::string kinds_of(const std::vector<Tensors>& lists) {
  return lists.empty() ? std::string() : kinds_of(lists[0]);
}

std::string dtypes_of(const Tensors& tensors) {
  return tensors.empty() ? "" : c10::toString(tensors[0].scalar_type());
}

std::string name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "band";
    case c10d::ReduceOp::BOR:
      return "bor";
    case c10d::ReduceOp::BXOR:
      return "bxor";
    default:
      return "premul_sum";
  }
}

class GuardedBackend final : public c10d::Backend {
 public:
  GuardedBackend(c10::intrusive_ptr<c10d::Backend> inner, GroupPtr group)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        group_(std::move(group)) {}

  // ---- what is compared ------------------------------------------------------------------------
  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return call("broadcast", concat(" from ", o.rootRank, " of ", kinds_of(t)),
                [&] { return inner_->broadcast(t, o); });
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return call("all_reduce", concat(" (", name_of(o.reduceOp), ") of ", kinds_of(t)),
                [&] { return inner_->allreduce(t, o); });
  }
  WorkPtr allreduce_sparse(Tensors& t, const c10d::AllreduceOptions& o) override {
    return call("sparse all_reduce", concat(" (", name_of(o.reduceOp), ") of ", dtypes_of(t)),
                [&] { return inner_->allreduce_sparse(t, o); });
  }
  WorkPtr allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    return call("all_reduce_coalesced", concat(" (", name_of(o.reduceOp), ") of ", kinds_of(t)),
                [&] { return inner_->allreduce_coalesced(t, o); });
  }
  WorkPtr reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return call("reduce",
                concat(" (", name_of(o.reduceOp), ") to ", o.rootRank, " of ", kinds_of(t)),
                [&] { return inner_->reduce(t, o); });
  }
  // Each rank lists the sizes of all, also where these differ.
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in,
                    const c10d::AllgatherOptions& o) override {
    return call("all_gather", concat(" of ", kinds_of(out)),
                [&] { return inner_->allgather(out, in, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return call("all_gather_into_tensor", concat(" of ", kinds_of(Tensors{in})),
                [&] { return inner_->_allgather_base(out, in, o); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& out, Tensors& in,
                              const c10d::AllgatherOptions& o) override {
    return call("all_gather_coalesced", concat(" of ", kinds_of(in)),
                [&] { return inner_->allgather_coalesced(out, in, o); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                          const c10d::AllgatherOptions& o) override {
    return call("all_gather_into_tensor_coalesced", concat(" of ", kinds_of(in)),
                [&] { return inner_->allgather_into_tensor_coalesced(out, in, o); });
  }
  WorkPtr gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& o) override {
    return call("gather", concat(" to ", o.rootRank, " of ", kinds_of(in)),
                [&] { return inner_->gather(out, in, o); });
  }
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& o) override {
    return call("scatter", concat(" from ", o.rootRank, " of ", kinds_of(out)),
                [&] { return inner_->scatter(out, in, o); });
  }
  WorkPtr reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                         const c10d::ReduceScatterOptions& o) override {
    return call("reduce_scatter", concat(" (", name_of(o.reduceOp), ") of ", kinds_of(in)),
                [&] { return inner_->reduce_scatter(out, in, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return call("reduce_scatter_tensor",
                concat(" (", name_of(o.reduceOp), ") of ", kinds_of(Tensors{in})),
                [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                          const c10d::ReduceScatterOptions& o) override {
    return call("reduce_scatter_tensor_coalesced",
                concat(" (", name_of(o.reduceOp), ") of ", kinds_of(in)),
                [&] { return inner_->reduce_scatter_tensor_coalesced(out, in, o); });
  }
  // Sizes may differ from rank to rank.
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, Counts& to, Counts& from,
                        const c10d::AllToAllOptions& o) override {
    return call("all_to_all_single", concat(" of ", dtypes_of({in})),
                [&] { return inner_->alltoall_base(out, in, to, from, o); });
  }
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    return call("all_to_all", concat(" of ", dtypes_of(in)),
                [&] { return inner_->alltoall(out, in, o); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return call("barrier", "", [&] { return inner_->barrier(o); });
  }

  WorkPtr send(Tensors& t, int to, int tag) override {
    return message("send", {getRank(), to, tag}, t, [&] { return inner_->send(t, to, tag); });
  }
  WorkPtr recv(Tensors& t, int from, int tag) override {
    const auto receive = [&] { return inner_->recv(t, from, tag); };
    if (receives_from_any_) return receive();
    return message("recv", {from, getRank(), tag}, t, receive);
  }

  // ---- what passes as it is --------------------------------------------------------------------
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inner_->supportsTensorAlloc(device);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void startCoalescing() override { inner_->startCoalescing(); }
  WorkPtr endCoalescing() override { return inner_->endCoalescing(); }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_for_all) override {
    inner_->monitoredBarrier(o, wait_for_all);
  }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  // Who sends is known only afterwards.
  WorkPtr recvAnysource(Tensors& t, int tag) override {
    receives_from_any_ = true;
    return inner_->recvAnysource(t, tag);
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    return inner_->split(store, ranks, options);
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override {
    inner_->eagerConnectSingleDevice(device);
  }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

 private:
  /// Messages of one kind: from, to, tag.
  using Way = std::array<int, 3>;

  /// Notes a collective, compares it, and makes it. `of`: what else must be equal.
  template <class Start>
  WorkPtr call(std::string_view name, const std::string& of, const Start& start) {
    const std::string what = concat(name, of);
    return call(group_, name, {what}, start, /*in_slices=*/true);
  }

  template <class Start>
  WorkPtr call(const GroupPtr& group, std::string_view name, const GuardedCall& what,
               const Start& start, bool in_slices) {
    std::uint64_t number = 0;
    {
      const Away away;  // telling who is wrong may take a moment
      number = group->enter(what);
    }
    WorkPtr work = start();
    if (!work) return work;
    Made made{group, number, std::string(name), Program::instance().begin_call(),
              nanoseconds_now()};
    return c10::make_intrusive<GuardedWork>(std::move(work), std::move(made), lookout_, in_slices);
  }

  /// Null where there are too many kinds: those with a tag for each message would take the places
  /// of groups.
  GroupPtr messages_of(Way way) {
    constexpr std::size_t kMost = 32;
    const std::scoped_lock lock(mutex_);
    if (const auto known = messages_.find(way); known != messages_.end()) return known->second;
    if (messages_.size() >= kMost) return nullptr;
    const auto [from, to, tag] = way;
    return messages_[way] =
               group_->messages(static_cast<std::size_t>(from), static_cast<std::size_t>(to), tag);
  }

  /// Notes one side of a message. Sizes may differ where they hold equally much.
  template <class Start>
  WorkPtr message(std::string_view name, Way way, const Tensors& t, const Start& start) {
    const auto [from, to, tag] = way;
    // What the backend itself refuses, it refuses in its words.
    if (t.size() != 1 || from == to || std::min(from, to) < 0 || std::max(from, to) >= getSize()) {
      return start();
    }
    const GroupPtr group = messages_of(way);
    if (!group) return start();
    const std::string what = concat("message of ", dtypes_of(t));
    const auto bytes = static_cast<std::int64_t>(t[0].nbytes());
    return call(group, name, {what, bytes}, start, /*in_slices=*/false);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  GroupPtr group_;
  std::mutex mutex_;  // of the messages
  std::map<Way, GroupPtr> messages_;
  bool receives_from_any_ = false;
  std::shared_ptr<Lookout> lookout_ = Lookout::shared();
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> guarded_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                  std::shared_ptr<GuardedGroup> group) {
  return c10::make_intrusive<GuardedBackend>(std::move(inner), std::move(group));
}

}  // namespace intarsia
