// A backend that counts the calls and the input bytes of another.
#pragma once

#include <atomic>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace intarsia::testing {

struct Counts {
  std::atomic<std::uint64_t> calls = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint64_t> received = 0;  ///< of them, those of recv, which hands over nothing
};

class CountingBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  CountingBackend(c10::intrusive_ptr<c10d::Backend> inner, Counts& counts)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), counts_(counts) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return count(in), inner_->_allgather_base(out, in, o);
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return count(t[0]), inner_->allreduce(t, o);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return count(in), inner_->_reduce_scatter_base(out, in, o);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_counts,
                        std::vector<std::int64_t>& in_counts,
                        const c10d::AllToAllOptions& o) override {
    return count(in), inner_->alltoall_base(out, in, out_counts, in_counts, o);
  }
  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return count(t[0]), inner_->broadcast(t, o);
  }
  WorkPtr send(Tensors& t, int to, int tag) override {
    return count(t[0]), inner_->send(t, to, tag);
  }
  WorkPtr recv(Tensors& t, int from, int tag) override {
    return counts_.received += t[0].nbytes(), count(t[0]), inner_->recv(t, from, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override { return count({}), inner_->barrier(o); }

 private:
  void count(const at::Tensor& input) {
    ++counts_.calls;
    if (input.defined()) counts_.bytes += input.nbytes();
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  Counts& counts_;
};

}  // namespace intarsia::testing
