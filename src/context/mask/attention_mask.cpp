#include "intarsia/attention_mask.h"

#include <algorithm>
#include <limits>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "AttentionMask";

void check_count(std::string_view what, std::int64_t count) {
  if (count < 0) fail<ValueError>(kWhere, what, " is ", count, "; it must not be negative");
}

void check_starts(const std::vector<std::int64_t>& starts) {
  if (starts.empty() || starts[0] != 0) {
    fail<ValueError>(kWhere, "documents(", join(starts), ") must begin at 0");
  }
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] <= starts[i - 1]) {
      fail<ValueError>(kWhere, "documents(", join(starts), ") must ascend: ", starts[i],
                       " follows ", starts[i - 1]);
    }
  }
}

/// Adds [begin, end) to runs whose begins do not descend.
void add(std::vector<Range>& out, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  if (!out.empty() && begin <= out.back().end) {
    out.back().end = std::max(out.back().end, end);
  } else {
    out.push_back({begin, end});
  }
}

}  // namespace

AttentionMask AttentionMask::causal() {
  AttentionMask out;
  out.after_ = 0;
  return out;
}

AttentionMask AttentionMask::window(std::int64_t before, std::int64_t after) {
  check_count("window's `before`", before);
  check_count("window's `after`", after);
  AttentionMask out;
  out.before_ = before;
  out.after_ = after;
  return out;
}

AttentionMask AttentionMask::listed(std::int64_t keys,
                                    const std::vector<std::vector<Range>>& queries) {
  return listed_of_samples(keys, {queries});
}

AttentionMask AttentionMask::listed_of_samples(
    std::int64_t keys, const std::vector<std::vector<std::vector<Range>>>& samples) {
  auto made = std::make_shared<Listed>();
  made->samples = static_cast<std::int64_t>(samples.size());
  made->queries = samples.empty() ? 0 : static_cast<std::int64_t>(samples[0].size());
  made->keys = keys;
  for (const auto& queries : samples) {
    if (static_cast<std::int64_t>(queries.size()) != made->queries) {
      fail<ValueError>(kWhere, "samples list ", made->queries, " and ", queries.size(),
                       " queries; they must list as many");
    }
    for (std::size_t q = 0; q < queries.size(); ++q) {
      made->first.push_back(made->runs.size());
      std::int64_t end = -1;
      for (const Range& run : queries[q]) {
        if (run.size() <= 0 || run.begin <= end || run.end > keys) {
          fail<ValueError>(kWhere, "query ", q, " lists the keys ", run,
                           ": runs are not empty, ascend, do not touch, and end at ", keys);
        }
        end = run.end;
        made->runs.push_back(run);
      }
    }
  }
  made->first.push_back(made->runs.size());
  made->hash = hash_text("listed");
  const auto add_word = [&](std::int64_t word) {
    made->hash = hash_mix(made->hash, static_cast<std::uint64_t>(word));
  };
  for (const std::int64_t word : {made->samples, made->queries, made->keys}) add_word(word);
  for (const std::size_t first : made->first) add_word(static_cast<std::int64_t>(first));
  for (const Range& run : made->runs) {
    add_word(run.begin);
    add_word(run.end);
  }
  AttentionMask out;
  out.listed_ = std::move(made);
  return out;
}

bool AttentionMask::agrees_with(const AttentionMask& other) const {
  std::vector<Range> mine;
  std::vector<Range> theirs;
  for (std::int64_t s = 0; s < samples(); ++s) {
    for (std::int64_t q = 0; q < listed_->queries; ++q) {
      keys_of(s, q, listed_->keys, mine);
      other.keys_of(s, q, listed_->keys, theirs);
      if (mine != theirs) return false;
    }
  }
  return true;
}

AttentionMask AttentionMask::recognised() const {
  if (!listed_ || listed_->queries == 0) return *this;
  // A window, and documents, that would explain what is seen of each sample.
  std::vector<Range> runs;
  std::int64_t before = 0;
  std::int64_t after = 0;
  std::int64_t sinks = 0;
  std::int64_t offset = 0;
  bool is_causal = true;
  std::vector<std::vector<std::int64_t>> documents;
  for (std::int64_t s = 0; s < samples(); ++s) {
    documents.push_back({0});
    for (std::int64_t q = 0; q < listed_->queries; ++q) {
      keys_of(s, q, listed_->keys, runs);
      if (runs.empty()) return *this;
      if (q == 0 && listed_->queries != listed_->keys) offset = runs.back().end - 1;
      // A run from 0 on may be longer than the window: it ends there, or sinks go on from it.
      if (runs.back().begin > 0) before = std::max(before, q + offset - runs.back().begin);
      after = std::max(after, runs.back().end - 1 - q - offset);
      if (runs.size() > 1) sinks = std::max(sinks, runs.front().end);
      is_causal = is_causal && runs.back().end == q + offset + 1;
      if (runs.front().begin > documents.back().back()) {
        documents.back().push_back(runs.front().begin);
      }
    }
  }
  const bool are_alike = std::all_of(documents.begin(), documents.end(),
                                     [&](const auto& d) { return d == documents[0]; });
  if (are_alike) documents.resize(1);
  const AttentionMask base = is_causal ? causal() : all();
  std::vector<AttentionMask> candidates{all(), causal().offset(offset),
                                        window(before, after).sinks(sinks).offset(offset)};
  if (listed_->queries == listed_->keys) {
    candidates.insert(candidates.begin() + 2, base.documents_of_samples(documents));
  }
  for (const AttentionMask& each : candidates) {
    if (agrees_with(each)) return each;
  }
  return *this;
}

AttentionMask AttentionMask::described(std::string_view asked) const {
  if (listed_) {
    fail<ValueError>(kWhere, asked, " cannot be added to a listed mask; list what it leaves");
  }
  return *this;
}

AttentionMask AttentionMask::prefix(std::int64_t keys) const {
  check_count("prefix", keys);
  AttentionMask out = described("prefix");
  out.prefix_ = keys;
  return out;
}

AttentionMask AttentionMask::sinks(std::int64_t keys) const {
  check_count("sinks", keys);
  AttentionMask out = described("sinks");
  out.sinks_ = keys;
  return out;
}

AttentionMask AttentionMask::listed_within(std::int64_t before, std::int64_t after) const {
  std::vector<std::vector<std::vector<Range>>> samples(static_cast<std::size_t>(listed_->samples));
  std::vector<Range> runs;
  for (std::int64_t s = 0; s < listed_->samples; ++s) {
    for (std::int64_t q = 0; q < listed_->queries; ++q) {
      keys_of(s, q, listed_->keys, runs);
      auto& kept = samples[static_cast<std::size_t>(s)].emplace_back();
      for (const Range& run : runs) {
        add(kept, std::max(run.begin, q - before), std::min(run.end, q + after + 1));
      }
    }
  }
  return listed_of_samples(listed_->keys, samples);
}

AttentionMask AttentionMask::within(std::int64_t before, std::int64_t after) const {
  check_count("within's `before`", before);
  check_count("within's `after`", after);
  if (listed_ && listed_->queries == listed_->keys) return listed_within(before, after);
  AttentionMask out = described("within");
  out.before_ = before_ ? std::min(*before_, before) : before;
  out.after_ = after_ ? std::min(*after_, after) : after;
  return out;
}

AttentionMask AttentionMask::documents(std::vector<std::int64_t> starts) const {
  return documents_of_samples({std::move(starts)});
}

AttentionMask AttentionMask::documents_of_samples(
    std::vector<std::vector<std::int64_t>> starts) const {
  for (const auto& sample : starts) check_starts(sample);
  AttentionMask out = described("documents");
  out.documents_ = std::move(starts);
  return out;
}

AttentionMask AttentionMask::offset(std::int64_t offset) const {
  AttentionMask out = described("offset");
  out.offset_ = offset;
  return out;
}

std::string AttentionMask::listed_text() const {
  std::string out = concat("listed(", listed_->keys, ":");
  std::size_t row = 0;
  for (std::int64_t s = 0; s < listed_->samples; ++s) {
    if (s > 0) out += "|";
    if (listed_->queries == 0) out += "-";  // not one query that sees nothing
    for (std::int64_t q = 0; q < listed_->queries; ++q, ++row) {
      if (q > 0) out += ";";
      for (std::size_t i = listed_->first[row]; i < listed_->first[row + 1]; ++i) {
        out += concat(i > listed_->first[row] ? "," : "", listed_->runs[i].begin, ":",
                      listed_->runs[i].end);
      }
    }
  }
  return out + ")";
}

AttentionMask AttentionMask::parse_listed(Cursor& cursor) {
  cursor.expect("(");
  const std::int64_t keys = cursor.integer();
  cursor.expect(":");
  std::vector<std::vector<std::vector<Range>>> samples(1, {{}});
  while (!cursor.accept(")")) {
    if (cursor.accept("|")) {
      samples.push_back({{}});
    } else if (cursor.accept("-")) {
      samples.back().clear();
    } else if (cursor.accept(";")) {
      samples.back().emplace_back();
    } else {
      Range run;
      run.begin = cursor.integer();
      cursor.expect(":");
      run.end = cursor.integer();
      cursor.accept(",");
      samples.back().back().push_back(run);
    }
  }
  return listed_of_samples(keys, samples);
}

std::string AttentionMask::short_text() const {
  constexpr std::size_t kMost = 80;
  const std::string text = listed_ && listed_->runs.size() > kMost
                               ? concat("listed(", listed_->keys, ":... ", listed_->samples, " x ",
                                        listed_->queries, " queries)")
                               : to_string();
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::uint64_t AttentionMask::hash() const {
  return listed_ ? listed_->hash : hash_text(to_string());
}

std::string AttentionMask::to_string() const {
  if (listed_) return listed_text();
  std::string out = before_  ? concat("window(", *before_, ",", *after_, ")")
                    : after_ ? "causal"
                             : "all";
  if (prefix_ > 0) out += concat("+prefix(", prefix_, ")");
  if (sinks_ > 0) out += concat("+sinks(", sinks_, ")");
  if (offset_ != 0) out += concat("+offset(", offset_, ")");
  for (std::size_t s = 0; s < documents_.size(); ++s) {
    out += concat(s == 0 ? "+documents(" : ";", join(documents_[s]));
  }
  return documents_.empty() ? out : out + ")";
}

AttentionMask AttentionMask::parse(std::string_view text) {
  Cursor cursor(kWhere, text);
  const auto number = [&] {
    cursor.expect("(");
    const std::int64_t out = cursor.integer();
    cursor.expect(")");
    return out;
  };
  AttentionMask out;
  if (cursor.accept("listed")) {
    out = parse_listed(cursor);
    cursor.end();
    return out;
  }
  if (cursor.accept("window")) {
    cursor.expect("(");
    const std::int64_t before = cursor.integer();
    out = window(before, cursor.accept(",") ? cursor.integer() : 0);
    cursor.expect(")");
  } else if (cursor.accept("causal")) {
    out = causal();
  } else if (!cursor.accept("all")) {
    cursor.fail_here("all, causal or window(before,after)");
  }
  while (cursor.accept("+")) {
    if (cursor.accept("prefix")) {
      out = out.prefix(number());
    } else if (cursor.accept("sinks")) {
      out = out.sinks(number());
    } else if (cursor.accept("offset")) {
      out = out.offset(number());
    } else if (cursor.accept("documents")) {
      std::vector<std::vector<std::int64_t>> starts;
      do {
        cursor.expect(starts.empty() ? "(" : ";");
        starts.emplace_back();
        do starts.back().push_back(cursor.integer());
        while (cursor.accept(","));
      } while (cursor.peek(";"));
      cursor.expect(")");
      out = out.documents_of_samples(std::move(starts));
    } else {
      cursor.fail_here("prefix(n), sinks(n), offset(n) or documents(0,...)");
    }
  }
  cursor.end();
  return out;
}

std::int64_t AttentionMask::samples() const {
  return listed_ ? listed_->samples
                 : std::max<std::int64_t>(1, static_cast<std::int64_t>(documents_.size()));
}

Range AttentionMask::document_of(std::int64_t sample, std::int64_t position,
                                 std::int64_t keys) const {
  if (documents_.empty()) return {0, keys};
  const auto& starts = documents_[documents_.size() == 1 ? 0 : static_cast<std::size_t>(sample)];
  const auto next = std::upper_bound(starts.begin(), starts.end(), position);
  return {*(next - 1), next == starts.end() ? keys : std::min(*next, keys)};
}

void AttentionMask::keys_of(std::int64_t sample, std::int64_t query, std::int64_t keys,
                            std::vector<Range>& out) const {
  out.clear();
  if (listed_) {
    const std::int64_t row = (listed_->samples == 1 ? 0 : sample * listed_->queries) + query;
    const auto q = static_cast<std::size_t>(row);
    out.assign(listed_->runs.begin() + static_cast<std::ptrdiff_t>(listed_->first[q]),
               listed_->runs.begin() + static_cast<std::ptrdiff_t>(listed_->first[q + 1]));
    return;
  }
  const std::int64_t at = query + offset_;
  const Range document = document_of(sample, at, keys);
  const std::int64_t last =
      after_ ? std::clamp(at + *after_ + 1, document.begin, document.end) : document.end;
  const std::int64_t first = before_ ? std::max(at - *before_, document.begin) : document.begin;
  add(out, document.begin,
      std::max(std::min(document.begin + prefix_, document.end),
               std::min(document.begin + sinks_, last)));
  add(out, first, last);
}

bool AttentionMask::sees(std::int64_t sample, std::int64_t query, std::int64_t key) const {
  std::vector<Range> runs;
  keys_of(sample, query, std::numeric_limits<std::int64_t>::max() / 2, runs);
  return std::any_of(runs.begin(), runs.end(),
                     [&](const Range& run) { return run.begin <= key && key < run.end; });
}

void AttentionMask::check(std::string_view where, std::int64_t samples, std::int64_t queries,
                          std::int64_t keys) const {
  if (listed_) {
    if (listed_->queries != queries || listed_->keys != keys) {
      fail<ValueError>(where, "the mask was listed for ", listed_->queries, " queries and ",
                       listed_->keys, " keys, and there are ", queries, " and ", keys);
    }
    if (listed_->samples != 1 && listed_->samples != samples) {
      fail<ValueError>(where, "the mask was listed for ", listed_->samples,
                       " samples, and the batch has ", samples);
    }
    return;
  }
  if (documents_.empty()) return;
  if (queries + offset_ > keys || offset_ < 0) {
    fail<ValueError>(where,
                     "a mask with documents is for queries that are among the keys: ", queries,
                     " queries from position ", offset_, " on, ", keys, " keys");
  }
  if (documents_.size() != 1 && static_cast<std::int64_t>(documents_.size()) != samples) {
    fail<ValueError>(where, "the mask has documents of ", documents_.size(),
                     " samples, and the batch has ", samples);
  }
  for (const auto& starts : documents_) {
    if (starts.back() < keys || keys == 0) continue;
    fail<ValueError>(where, "a document begins at ", starts.back(), ", and there are ", keys,
                     " keys");
  }
}

bool operator==(const AttentionMask& a, const AttentionMask& b) {
  if (a.listed_ && b.listed_) return *a.listed_ == *b.listed_;
  return !a.listed_ && !b.listed_ && a.before_ == b.before_ && a.after_ == b.after_ &&
         a.prefix_ == b.prefix_ && a.sinks_ == b.sinks_ && a.offset_ == b.offset_ &&
         a.documents_ == b.documents_;
}

}  // namespace intarsia
