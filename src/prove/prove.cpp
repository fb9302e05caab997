#include "intarsia/prove.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"
#include "prove/bench.h"
#include "prove/case.h"
#include "prove/combinations.h"
#include "prove/counter_example.h"
#include "prove/missing_rows.h"
#include "prove/samples.h"

namespace intarsia {
namespace {

constexpr std::size_t kVariantCombinations = 16;

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
    const std::vector<Combination> all =
        combinations(sample, ref->arguments, options_.combinations);
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
      const Reference* ref = bench_.reference(first, options_.backward);
      const auto all = combinations(first, ref->arguments, options_.combinations);
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

  void one(const Sample& sample, const Combination& placements, std::int64_t n) {
    const Case c{sample, on_axis(one_axis(n), placements)};
    const Outcome o = compare(c);
    if (options_.missing && n == options_.ranks[0] && o.difference.empty() && o.communicated) {
      const auto row = missing_.look_for(sample, placements);
      if (row) proof_.missing.push_back(*row);
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
      proof_.wrong.push_back(smallest_counter_example(bench_, options_, c, o.difference));
    }
    return o;
  }

  ProofOptions options_;
  Bench bench_;
  MissingRows missing_{bench_};
  Proof proof_;
  std::vector<Sample> added_;
  std::set<std::string> kinds_;
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
