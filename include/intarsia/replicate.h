// Data parallel for plain modules: every rank holds the full model, and gradients are averaged.
//
//     const auto world = World::connect();
//     Net model;                                                     // a plain module
//     const Mesh mesh({{"dp", world->size()}});
//     const auto replica = replicate(*model, *world, mesh, "dp");    // now the same on all ranks
//     model->forward(at::randn({4, 8})).square().mean().backward();  // gradients are averages
//
// Modules and tensors stay plain. While backward runs, gradients are collected in buckets, and each
// bucket is reduced as soon as it is full; when backward returns, all are done. Graphs may differ
// between ranks and steps: what a rank did not use counts as zero, and what no rank used keeps the
// gradient that it had. Not run on GPUs yet; nothing here assumes the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "intarsia/mesh.h"
#include "intarsia/world.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

/// How buffers, such as the running means of batch norm, are kept alike.
enum class BufferSync : std::uint8_t {
  from_first,  ///< all take those of the first rank, at the end of each backward
  averaged,    ///< floats become the average over ranks; the others come from the first
  own,         ///< each rank has its own
};

struct ReplicateOptions {
  /// A bucket is closed when it has this many bytes. It is closed before if the next gradient would
  /// make it larger and it is at least half full.
  std::int64_t bucket_bytes = 25 * 1024 * 1024;
  /// The same for the bucket that comes first: it is small, so that sending begins early.
  std::int64_t first_bucket_bytes = 1024 * 1024;
  /// What gradients are reduced in, such as at::kBFloat16 to halve the bytes. Unset: their own
  /// dtype, which spares a copy.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  BufferSync buffers = BufferSync::from_first;
  /// Throw c10's errors in place of ours (DistError for WorldError, ...), as ops of distributed
  /// tensors do. The Python package asks for it: only these keep their kind through `backward()`.
  bool torch_errors = false;
};

/// What a replica has done on this rank.
struct ReplicaCounters {
  std::uint64_t buckets = 0;      ///< how many there are now
  std::uint64_t rounds = 0;       ///< backwards whose gradients were averaged
  std::uint64_t collectives = 0;  ///< of gradients, buffers and the order of buckets
  std::uint64_t bytes = 0;        ///< that this rank handed over in them
  std::uint64_t copies = 0;       ///< gradients copied into buckets
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What is replicated, where there is no torch::nn::Module.
struct ReplicatedTensors {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

/// Keeps a model's gradients in step. Its hooks are removed when it is destroyed, and gradients are
/// then local again.
///
/// THREADS: one backward at a time. With several devices its hooks may come from several threads.
class Replica {
 public:
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// While it lives, backwards send nothing and gradients add up on this rank. The next backward
  /// outside averages the sums. What counts is where backward runs, not where forward did.
  class [[nodiscard]] LocalScope {
   public:
    ~LocalScope();
    LocalScope(const LocalScope&) = delete;
    LocalScope& operator=(const LocalScope&) = delete;

   private:
    friend class Replica;
    explicit LocalScope(Replica& replica);
    std::shared_ptr<std::atomic<int>> depth_;  // none in a group of one
  };
  LocalScope no_sync() { return LocalScope(*this); }

  /// Takes part in the round of a step in which this rank's loss used no parameter, or for which it
  /// has no batch left: in place of `backward`, never besides it. Within no_sync it does nothing.
  /// COLLECTIVE: all ranks of the group, each by its backward or by this.
  void finish();

  ReplicaCounters counters() const;
  /// The names of the parameters in each bucket, in the order of sending.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  friend std::shared_ptr<Replica> replicate(const ReplicatedTensors&, World&, const Mesh&,
                                            std::span<const std::string>, const ReplicateOptions&);
  struct Core;
  explicit Replica(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;  // none in a group of one
};

/// From now on, the ranks along an axis of the mesh average their gradients of a module. Ranks must
/// have the same parameters and buffers, in the same order: WorldError that names the first that
/// differs. All get the values of the first rank. A group of one costs nothing.
///
/// Parameters that require no gradient now are left out, and may not be unfrozen later. The module
/// must have its final dtype and device, and its buffers must be written in place. Gradients must
/// be dense. `backward(create_graph)` and backwards within a backward are refused, as are worlds in
/// lockstep and parameters that are distributed tensors.
///
/// After a round, a gradient is a view of its bucket. Setting gradients to none between steps is
/// the cheapest: one copy for each of them. Setting them to zero, or not at all, is right too.
///
/// COLLECTIVE: all ranks of the group; likewise each backward outside of no_sync.
[[nodiscard]] std::shared_ptr<Replica> replicate(torch::nn::Module& module, World& world,
                                                 const Mesh& mesh, const std::string& axis,
                                                 const ReplicateOptions& options = {});
/// Over several axes, fused into one group.
[[nodiscard]] std::shared_ptr<Replica> replicate(torch::nn::Module& module, World& world,
                                                 const Mesh& mesh,
                                                 std::span<const std::string> axes,
                                                 const ReplicateOptions& options = {});
[[nodiscard]] std::shared_ptr<Replica> replicate(const ReplicatedTensors& tensors, World& world,
                                                 const Mesh& mesh,
                                                 std::span<const std::string> axes,
                                                 const ReplicateOptions& options = {});

}  // namespace intarsia
