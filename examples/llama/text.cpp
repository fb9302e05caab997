#include "text.h"

#include <ATen/ATen.h>

#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace llama {
namespace {

using Words = std::vector<std::string_view>;
const Words kArticles{"the", "a", "this", "every"};
const Words kAdjectives{"small", "old", "red", "quiet", "wooden"};
const Words kNouns{"tile", "artist", "table", "river", "pattern", "knife"};
const Words kVerbs{"meets", "cuts", "joins", "follows", "carries"};
const std::array<const Words*, 6> kSentence{&kArticles, &kAdjectives, &kNouns,
                                            &kVerbs,    &kArticles,   &kNouns};

/// Its numbers of 31 bits are the same as in llama.py.
using Random =
    std::linear_congruential_engine<std::uint64_t, 6364136223846793005, 1442695040888963407, 0>;

std::string text(std::size_t length, Random& random) {
  std::string made;
  while (made.size() < length) {
    for (const Words* words : kSentence) {
      made += (*words)[(random() >> 33) % words->size()];
      made += ' ';
    }
    made.back() = '.';
    made += ' ';
  }
  made.resize(length);
  return made;
}

}  // namespace

Batch make_batch(std::int64_t step, std::int64_t rows, std::int64_t length, std::uint64_t seed) {
  Random random(seed * 1'000'003 + static_cast<std::uint64_t>(step));
  at::Tensor both = at::empty({rows, length + 1}, at::kLong);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::string line = text(static_cast<std::size_t>(length) + 1, random);
    std::copy(line.begin(), line.end(), both[i].mutable_data_ptr<std::int64_t>());
  }
  return {both.slice(1, 0, length).contiguous(), both.slice(1, 1, length + 1).contiguous()};
}

}  // namespace llama
