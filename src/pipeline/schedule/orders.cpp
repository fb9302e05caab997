#include "pipeline/schedule/orders.h"

#include <algorithm>
#include <array>

namespace intarsia {
namespace {

using enum ActionKind;

Action act(ActionKind kind, int stage, int microbatch) {
  return {.kind = kind, .stage = stage, .microbatch = microbatch};
}

/// So many of `forwards`, then one of `backwards` and one of the forwards in turn, then the rest.
std::vector<Action> in_turn(const std::vector<Action>& forwards,
                            const std::vector<Action>& backwards, std::size_t first) {
  std::vector<Action> out;
  std::size_t f = 0;
  for (; f < std::min(first, forwards.size()); ++f) out.push_back(forwards[f]);
  for (const Action& b : backwards) {
    out.push_back(b);
    if (f < forwards.size()) out.push_back(forwards[f++]);
  }
  return out;
}

}  // namespace

std::vector<int> stages_around(int ranks, int chunks) {
  std::vector<int> out;
  for (int s = 0; s < ranks * chunks; ++s) out.push_back(s % ranks);
  return out;
}

std::vector<int> stages_there_and_back(int ranks) {
  std::vector<int> out;
  for (int s = 0; s < 2 * ranks; ++s) out.push_back(std::min(s, 2 * ranks - 1 - s));
  return out;
}

Orders gpipe_orders(int ranks, int microbatches, int chunks) {
  Orders out(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    auto& order = out[static_cast<std::size_t>(r)];
    for (int c = 0; c < chunks; ++c) {
      for (int m = 0; m < microbatches; ++m) order.push_back(act(forward, c * ranks + r, m));
    }
    for (int c = chunks - 1; c >= 0; --c) {
      for (int m = 0; m < microbatches; ++m) order.push_back(act(backward, c * ranks + r, m));
    }
  }
  return out;
}

Orders one_f_one_b_orders(int ranks, int microbatches, bool split) {
  Orders out;
  for (int r = 0; r < ranks; ++r) {
    std::vector<Action> forwards;
    std::vector<Action> backwards;
    for (int m = 0; m < microbatches; ++m) {
      forwards.push_back(act(forward, r, m));
      backwards.push_back(act(split ? input_backward : backward, r, m));
    }
    out.push_back(in_turn(forwards, backwards, static_cast<std::size_t>(ranks - r)));
  }
  return out;
}

Orders interleaved_orders(int ranks, int microbatches, int chunks) {
  // Microbatches go through all chunks in groups of one for each rank; what is left over joins the
  // first group, as that fills the ranks.
  std::vector<int> begins{0};
  for (int m = ranks + microbatches % ranks; m <= microbatches; m += ranks) begins.push_back(m);
  const int first_group = begins[1] - begins[0];
  Orders out;
  for (int r = 0; r < ranks; ++r) {
    std::vector<Action> forwards;
    std::vector<Action> backwards;
    for (std::size_t g = 0; g + 1 < begins.size(); ++g) {
      for (int c = 0; c < chunks; ++c) {
        for (int m = begins[g]; m < begins[g + 1]; ++m) {
          forwards.push_back(act(forward, c * ranks + r, m));
        }
      }
      for (int c = chunks - 1; c >= 0; --c) {
        for (int m = begins[g]; m < begins[g + 1]; ++m) {
          backwards.push_back(act(backward, c * ranks + r, m));
        }
      }
    }
    const int first = (chunks - 1) * first_group + 2 * (ranks - 1 - r) + 1;
    out.push_back(in_turn(forwards, backwards, static_cast<std::size_t>(first)));
  }
  return out;
}

namespace {

/// When the four parts of a microbatch run on rank 0, in a pattern in which the first way through
/// the ranks goes by `out` from rank to rank, and the second by `back`.
struct VPattern {
  int out = 0;
  int back = 0;
  int second_forward = 0;
  int second_backward = 0;
  int first_backward = 0;

  struct Part {
    ActionKind kind;
    bool second;
    int at;
  };
  std::array<Part, 4> on(int rank) const {
    return {{{forward, false, out * rank},
             {forward, true, second_forward - back * rank},
             {input_backward, true, second_backward + out * rank},
             {input_backward, false, first_backward - back * rank}}};
  }
};

constexpr int kPeriod = 6;  // two forwards, two backwards of inputs and two of weights

/// Whether no rank would have to do two things at a time.
bool is_free(const VPattern& p, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    unsigned taken = 0;
    for (const auto& part : p.on(r)) {
      const unsigned bit = 1U << (((part.at % kPeriod) + kPeriod) % kPeriod);
      if ((taken & bit) != 0) return false;
      taken |= bit;
    }
  }
  return true;
}

/// The shortest of these ways.
VPattern shortest(int ranks, int out, int back) {
  const int there = out * (ranks - 1) + 1;
  const int again = back * (ranks - 1);
  VPattern best;
  bool found = false;
  for (int a = 0; a <= kPeriod; ++a) {
    for (int b = 0; b <= kPeriod; ++b) {
      for (int c = 0; c <= kPeriod; ++c) {
        VPattern p{out, back, there + again + a};
        p.second_backward = p.second_forward + 1 + b;
        p.first_backward = p.second_backward + there + c + again;
        if (is_free(p, ranks) && (!found || p.first_backward < best.first_backward)) {
          best = p;
          found = true;
        }
      }
    }
  }
  return best;  // with these ways there is one for any number of ranks: see the tests
}

}  // namespace

Orders v_orders(int ranks, int microbatches, int out, int back) {
  const VPattern pattern = shortest(ranks, out, back);
  Orders orders;
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::pair<int, Action>> timed;
    for (int m = 0; m < microbatches; ++m) {
      for (const auto& part : pattern.on(r)) {
        const int stage = part.second ? 2 * ranks - 1 - r : r;
        timed.emplace_back(part.at + kPeriod * m, act(part.kind, stage, m));
      }
    }
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    auto& order = orders.emplace_back();
    for (const auto& [at, action] : timed) order.push_back(action);
  }
  return orders;
}

namespace {

/// Writes down what a rank of dual_pipe_v does: it counts microbatches, and keeps weight gradients
/// that are put off.
class DualPipeRank {
 public:
  DualPipeRank(int rank, int ranks) : stages_{rank, 2 * ranks - 1 - rank} {}

  void f(std::size_t chunk) { out_.push_back(next(forward, chunk, forwards_[chunk])); }
  void b(std::size_t chunk) { out_.push_back(next(backward, chunk, backwards_[chunk])); }
  /// Of the input only.
  void i(std::size_t chunk) {
    out_.push_back(next(input_backward, chunk, backwards_[chunk]));
    Action later = out_.back();
    later.kind = weight_backward;
    put_off_.push_back(later);
  }
  void w() {
    out_.push_back(put_off_.front());
    put_off_.erase(put_off_.begin());
  }
  void f_and_b(std::size_t chunk_f, std::size_t chunk_b) {
    f(chunk_f);
    out_.back().with_next = true;
    b(chunk_b);
  }
  std::vector<Action> done() && { return std::move(out_); }

 private:
  Action next(ActionKind kind, std::size_t chunk, int& count) {
    return act(kind, stages_[chunk], count++);
  }

  std::array<int, 2> stages_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::vector<Action> put_off_;
  std::vector<Action> out_;
};

}  // namespace

Orders dual_pipe_v_orders(int ranks, int microbatches) {
  Orders out;
  for (int r = 0; r < ranks; ++r) {
    const int behind = ranks - 1 - r;
    const int before = r + 1;
    DualPipeRank rank(r, ranks);
    for (int k = 0; k < 2 * behind; ++k) rank.f(0);
    for (int k = 0; k < before; ++k) {
      rank.f(0);
      rank.f(1);
    }
    for (int k = 0; k < behind; ++k) {
      rank.i(1);
      rank.w();
      rank.f(1);
    }
    for (int k = 0; k < microbatches - 2 * ranks + before; ++k) {
      if (k == 0 && behind == 0) {  // its second stage is behind its first, so nothing is there yet
        rank.f(0);
        rank.b(1);
      } else {
        rank.f_and_b(0, 1);
      }
      rank.f_and_b(1, 0);
    }
    for (int k = 0; k < behind; ++k) {
      rank.b(1);
      rank.f_and_b(1, 0);
    }
    // Of the last 2 * before backwards, the second half puts its weights off.
    for (int k = 0; k < 2 * before; ++k) {
      const std::size_t chunk = k % 2 == 0 ? 1 : 0;
      if (k < before) {
        rank.b(chunk);
      } else {
        rank.i(chunk);
      }
    }
    for (int k = 0; k < behind; ++k) {
      rank.w();
      rank.i(0);
    }
    for (int k = 0; k < before; ++k) rank.w();
    out.push_back(std::move(rank).done());
  }
  return out;
}

}  // namespace intarsia
