#include "intarsia/prove.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"
#include "layout/chunk.h"
#include "prove/case.h"
#include "prove/samples.h"

namespace intarsia {
namespace {

constexpr int kMostShrinkingRuns = 400;
constexpr std::size_t kVariantCombinations = 16;

// Ops that are not run on pieces in layouts that no rule offers: their kernels read out of bounds
// where operands do not fit together. The last one gives, but for the last bit, its first operand.
constexpr std::array<std::string_view, 23> kUnchecked{
    "aten::_adaptive_avg_pool2d_backward",
    "aten::_adaptive_avg_pool3d_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
    "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
    "aten::embedding_dense_backward",
    "aten::fractional_max_pool2d_backward",
    "aten::linalg_ldl_solve",
    "aten::linalg_lu_solve",
    "aten::lu_unpack",
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::nll_loss_backward",
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
    "aten::nextafter"};

bool checks_operands(const Sample& sample) {
  return std::find(kUnchecked.begin(), kUnchecked.end(), sample.op.schema().name()) ==
         kUnchecked.end();
}

using Combination = std::vector<Placement>;  // one per tensor of the sample

Mesh one_axis(std::int64_t n) { return Mesh({{"a", n}}); }

std::vector<Layout> on_axis(const Mesh& mesh, const Combination& placements) {
  std::vector<Layout> out;
  for (const Placement& p : placements) out.emplace_back(mesh, std::vector<Placement>{p});
  return out;
}

bool same_tensors(const Sample& a, const Sample& b) {
  const auto of_a = a.tensors();
  const auto of_b = b.tensors();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const TensorSample* x, const TensorSample* y) { return *x == *y; });
}

/// The words with which a difference begins: to tell kinds of being wrong apart.
std::string kind_of(const std::string& difference) {
  constexpr std::size_t kBeginning = 48;
  std::string kind;
  for (const char c : difference.substr(0, std::min(difference.find(" as "), kBeginning))) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == ' ') kind += c;
  }
  return kind;
}

class Prover {
 public:
  explicit Prover(const ProofOptions& options) : options_(options), bench_(options.seed) {}

  void add(const Sample& sample) {
    const Reference* ref = bench_.reference(sample, options_.backward);
    if (ref == nullptr) {
      fail<ValueError>("prove", "the op itself refuses the sample ", sample.to_string());
    }
    ++proof_.samples;
    if (sample.tensors().empty() || enough()) return;
    added_.push_back(sample);
    const std::vector<Combination> all = combinations(sample, *ref);
    for (const std::int64_t n : options_.ranks) {
      for (const Combination& c : all) one(sample, c, n);
    }
    for (const char* text : {"[a=2,b=2]", "[a=2,b=3]", "[a=2,b=2,c=2]"}) {
      several(sample, Mesh::parse(text));
    }
    if (options_.variants) {
      for (const Variant v : {Variant::in_place, Variant::out}) variants(sample, all, v);
    }
    if (!enough()) check_rows(sample, *ref);
  }

  /// Decisions are remembered, and one that was made for some numbers must not serve others for
  /// which it is wrong. So of calls that differ in numbers alone, each comes first once, on ranks
  /// that remember nothing.
  void in_other_orders() {
    for (const Sample& first : added_) {
      std::vector<Sample> calls{first};
      for (const Sample& other : added_) {
        const bool alike = other.op == first.op && same_tensors(other, first);
        if (alike && !(other == first)) calls.push_back(other);
      }
      if (calls.size() == 1 || enough()) continue;
      bench_ = Bench(options_.seed);
      const auto all = combinations(first, *bench_.reference(first, options_.backward));
      for (const Sample& sample : calls) {
        for (const Combination& c : all) {
          compare(Case{sample, on_axis(one_axis(options_.ranks[0]), c)});
        }
      }
    }
  }

  Proof& proof() { return proof_; }

 private:
  bool enough() const { return proof_.wrong.size() >= options_.counter_examples; }

  /// Of two rows with the same inputs the second is never run, and so not proven.
  void check_rows(const Sample& sample, const Reference& ref) {
    const std::vector<Row> rows = rows_of(sample, ref.arguments);
    for (auto row = rows.begin(); row != rows.end(); ++row) {
      const auto first = std::find_if(rows.begin(), row, [&](const Row& other) {
        return other.in == row->in && other.linear == row->linear && other.out != row->out;
      });
      if (first == row || !kinds_.insert("two rows").second) continue;
      proof_.wrong.push_back(
          {sample.to_string(), concat("has two rows for the same inputs, ", *first, " and ", *row,
                                      "; only one is used")});
    }
  }

  /// All placements of all tensors on one axis; of too many, those that the rule names and others
  /// by lot.
  std::vector<Combination> combinations(const Sample& sample, const Reference& ref) const {
    std::vector<std::vector<Placement>> choices;
    std::size_t count = 1;
    for (const TensorSample* t : sample.tensors()) {
      choices.push_back(placements_for(*t));
      count = std::min<std::size_t>(count * choices.back().size(), 1'000'000);
    }
    std::vector<Combination> out;
    if (count <= options_.combinations) {
      for (std::size_t k = 0; k < count; ++k) {
        Combination c;
        std::size_t rest = k;
        for (const auto& choice : choices) {
          c.push_back(choice[rest % choice.size()]);
          rest /= choice.size();
        }
        out.push_back(std::move(c));
      }
      return out;
    }
    out = of_rule(sample, ref);
    std::uint64_t lot = hash_text(sample.to_string());
    while (out.size() < options_.combinations) {
      Combination c;
      for (const auto& choice : choices) {
        lot = hash_mix(lot, c.size());
        c.push_back(choice[lot % choice.size()]);
      }
      out.push_back(std::move(c));
    }
    return out;
  }

  /// The combinations that the rows of the rule name, and each of them with one tensor replicated.
  static std::vector<Combination> of_rule(const Sample& sample, const Reference& ref) {
    std::vector<Combination> out;
    for (const Row& row : rows_of(sample, ref.arguments)) {
      out.push_back(row.in);
      for (std::size_t i = 0; i < row.in.size(); ++i) {
        if (row.in[i].is_replicate()) continue;
        out.push_back(row.in);
        out.back()[i] = Placement::replicate();
      }
    }
    return out;
  }

  void one(const Sample& sample, const Combination& placements, std::int64_t n) {
    const Case c{sample, on_axis(one_axis(n), placements)};
    const Outcome o = compare(c);
    if (options_.missing && n == options_.ranks[0] && o.difference.empty() && o.communicated &&
        checks_operands(sample)) {
      look_for_row(sample, placements);
    }
  }

  void several(const Sample& sample, const Mesh& mesh) {
    std::uint64_t lot = hash_mix(hash_text(sample.to_string()), mesh.hash());
    for (std::size_t k = 0; k < options_.sampled; ++k) {
      std::vector<Layout> layouts;
      for (const TensorSample* t : sample.tensors()) {
        const auto choices = placements_for(*t);
        std::vector<Placement> placements;
        std::optional<Placement> partial;  // kinds do not mix
        for (std::size_t a = 0; a < mesh.axes(); ++a) {
          lot = hash_mix(lot, a + 1);
          Placement p = choices[lot % choices.size()];
          if (p.is_partial()) p = partial ? *partial : *(partial = p);
          placements.push_back(p);
        }
        layouts.emplace_back(mesh, placements);
      }
      compare(Case{sample, std::move(layouts)});
    }
  }

  void variants(const Sample& sample, const std::vector<Combination>& all, Variant v) {
    if (!variant_of(sample.op, v)) return;
    const std::size_t step = std::max<std::size_t>(1, all.size() / kVariantCombinations);
    for (std::size_t k = 0; k < all.size(); k += step) {
      compare(Case{sample, on_axis(one_axis(options_.ranks.back()), all[k]), v});
    }
  }

  Outcome compare(const Case& c) {
    if (enough()) return {};
    Outcome o = bench_.run(c, options_.backward);
    ++proof_.cases;
    proof_.gradients += o.gradients ? 1 : 0;
    if (!o.difference.empty() && kinds_.insert(kind_of(o.difference)).second) {
      proof_.wrong.push_back(smallest(c, o.difference));
    }
    return o;
  }

  // ---- missing rows ----

  /// How often values are drawn: results that are true or false are equal by luck more often.
  std::uint64_t draws(const Sample& sample) {
    constexpr std::uint64_t kFew = 3;
    constexpr std::uint64_t kMany = 10;
    const auto& results = bench_.reference(sample, false)->results;
    const bool real = std::all_of(results.begin(), results.end(), [](const at::Tensor& t) {
      return !t.defined() || t.is_floating_point() || t.is_complex();
    });
    return real ? kFew : kMany;
  }

  /// Whether other values give another result: one that is always the same can be had from any
  /// terms.
  bool depends_on_values(const Sample& sample) {
    const Reference* first = bench_.reference(sample, false, 0);
    const Reference* second = bench_.reference(sample, false, 1);
    if (first == nullptr || second == nullptr) return false;
    for (std::size_t r = 0; r < first->results.size(); ++r) {
      const at::Tensor& a = first->results[r];
      if (a.defined() && !at::equal(a, second->results[r])) return true;
    }
    return false;
  }

  static bool all_hold_elements(const Sample& sample, const Combination& placements,
                                std::int64_t n) {
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const Placement& p = placements[i];
      if (!p.is_shard()) continue;
      const std::int64_t length = sample.tensors()[i]->sizes[static_cast<std::size_t>(p.dim())];
      if (chunk(length, n, n - 1).size() == 0) return false;
    }
    return true;
  }

  void look_for_row(const Sample& sample, const Combination& placements) {
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const Placement& p = placements[i];
      if (sample.tensors()[i]->count() == 0) return;
      // An average is a sum of other terms; blocks go where shards go.
      if (p.is_strided() || (p.is_partial() && p.reduction() == Reduction::avg)) return;
      // Terms of whole numbers may be indices that point nowhere.
      if (p.is_partial() && sample.tensors()[i]->dtype < DType::f8e4m3) return;
    }
    Row row{placements, {}};
    const std::string inputs = row.to_string();
    if (found_.contains(inputs) || !depends_on_values(sample)) return;
    for (const std::int64_t n : {2, 3}) {
      // A rank without elements says nothing about the op.
      if (!all_hold_elements(sample, placements, n)) {
        if (n == 2) return;
        continue;
      }
      for (std::uint64_t draw = 0; draw < draws(sample); ++draw) {
        const auto out = bench_.legal(Case{sample, on_axis(one_axis(n), placements)}, draw);
        if (!out || (!row.out.empty() && row.out != *out)) return;
        row.out = *out;
      }
    }
    found_.insert(inputs);
    proof_.missing.push_back({row.to_string(), sample.to_string()});
  }

  // ---- counter-examples ----

  /// The same failure in a smaller case: fewer cuts, fewer axes and ranks, shorter dimensions.
  CounterExample smallest(Case c, std::string difference) {
    int runs = 0;
    const auto still_fails = [&](const Case& smaller) {
      if (++runs > kMostShrinkingRuns) return false;
      const Outcome o = bench_.run(smaller, options_.backward);
      if (o.difference.empty()) return false;
      difference = o.difference;
      return true;
    };
    bool changed = true;
    while (changed && runs < kMostShrinkingRuns) {
      changed = false;
      for (const Case& smaller : smaller_cases(c)) {
        if (!still_fails(smaller)) continue;
        c = smaller;
        changed = true;
        break;
      }
    }
    if (Bench(options_.seed).run(c, options_.backward).difference.empty()) {
      difference += "; not alone, but after calls with other numbers";
    }
    return {c.to_string(), difference};
  }

  static std::vector<Case> smaller_cases(const Case& c) {
    std::vector<Case> out;
    const Mesh& mesh = c.mesh();
    for (std::size_t i = 0; i < c.layouts.size(); ++i) {
      for (std::size_t a = 0; a < mesh.axes(); ++a) {
        if (c.layouts[i].placement(a).is_replicate()) continue;
        Case less = c;
        less.layouts[i] = less.layouts[i].with(a, Placement::replicate());
        out.push_back(std::move(less));
      }
    }
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      if (mesh.axes() > 1) out.push_back(with_axis(c, a, 0));
      if (mesh.size(a) > 2) out.push_back(with_axis(c, a, mesh.size(a) - 1));
    }
    // Dimensions of one length are taken to be one dimension.
    std::set<std::int64_t> lengths;
    for (const TensorSample* t : c.sample.tensors())
      lengths.insert(t->sizes.begin(), t->sizes.end());
    for (const std::int64_t length : lengths) {
      for (std::int64_t shorter = 1; shorter < length; ++shorter) {
        Case less = c;
        for (TensorSample* t : less.sample.tensors()) {
          std::replace(t->sizes.begin(), t->sizes.end(), length, shorter);
        }
        out.push_back(std::move(less));
      }
    }
    return out;
  }

  /// The case with another size of one axis; 0: without it.
  static Case with_axis(const Case& c, std::size_t axis, std::int64_t size) {
    std::vector<Axis> axes;
    for (std::size_t a = 0; a < c.mesh().axes(); ++a) {
      if (a != axis) axes.push_back({c.mesh().name(a), c.mesh().size(a)});
      if (a == axis && size > 0) axes.push_back({c.mesh().name(a), size});
    }
    const Mesh mesh(axes);
    Case out = c;
    for (Layout& l : out.layouts) {
      std::vector<Placement> placements;
      for (std::size_t a = 0; a < l.mesh().axes(); ++a) {
        if (a != axis || size > 0) placements.push_back(l.placement(a));
      }
      l = Layout(mesh, placements);
    }
    return out;
  }

  ProofOptions options_;
  Bench bench_;
  Proof proof_;
  std::vector<Sample> added_;
  std::set<std::string> kinds_;
  std::set<std::string> found_;
};

}  // namespace

Proof prove_samples(const std::vector<std::string>& samples, const ProofOptions& options) {
  if (samples.empty()) fail<ValueError>("prove", "there are no samples");
  if (options.ranks.empty()) fail<ValueError>("prove", "there are no numbers of ranks");
  Prover prover(options);
  for (const std::string& text : samples) {
    if (options.samples > 0 && prover.proof().samples >= options.samples) break;
    const Sample sample = Sample::parse(text);
    const std::string name = sample.op.schema().name();
    if (!prover.proof().op.empty() && prover.proof().op != name) {
      fail<ValueError>("prove", "samples of ", prover.proof().op, " and of ", name,
                       " are not proven together");
    }
    prover.proof().op = name;
    prover.add(sample);
  }
  prover.in_other_orders();
  return prover.proof();
}

Proof prove(std::string_view op, const ProofOptions& options) {
  const std::string wanted = with_namespace(op);
  const bool has_overload = wanted.find('.') != std::string::npos;
  std::vector<std::string> samples;
  for (const std::string& name : provable_ops()) {
    const bool same = name == wanted || (!has_overload && name.starts_with(wanted + '.'));
    if (!same) continue;
    const auto more = samples_of(op_named(name));
    samples.insert(samples.end(), more.begin(), more.end());
  }
  if (samples.empty()) {
    fail<ValueError>("prove", "there are no samples of '", wanted,
                     "'; prove_samples takes your own, such as \"", wanted, "(f64[6, 4])\"");
  }
  Proof proof = prove_samples(samples, options);
  proof.op = wanted;
  return proof;
}

std::string prove_case(std::string_view call, const ProofOptions& options) {
  Bench bench(options.seed);
  const Case c = Case::parse(call);
  if (bench.reference(c.sample, false) == nullptr) {
    fail<ValueError>("prove_case", "the op itself refuses ", c.sample.to_string());
  }
  return bench.run(c, options.backward).difference;
}

std::string Proof::to_string() const {
  std::string text = concat(op, ": ", samples, " samples, ", cases, " cases, ", gradients,
                            " with gradients: ", holds() ? "holds" : "WRONG", '\n');
  for (const CounterExample& e : wrong) {
    text += concat("  wrong: ", e.call, "\n         ", e.difference, '\n');
  }
  for (const MissingRow& m : missing) {
    text += concat("  missing: ", m.row, "   in ", m.sample, '\n');
  }
  return text;
}

}  // namespace intarsia
