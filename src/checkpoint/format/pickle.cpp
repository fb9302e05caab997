#include "checkpoint/format/pickle.h"

#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using Kind = Pickled::Kind;

/// The bytes of a pickle, read from the first to the last.
class Tape {
 public:
  Tape(std::string_view file, std::span<const std::byte> bytes) : file_(file), bytes_(bytes) {}

  [[noreturn]] void refuse(std::string_view reason) const {
    fail<FileError>("checkpoint", file_, ": the pickle ", reason, ", at byte ", at_);
  }

  std::uint64_t number(std::size_t count) {
    const auto part = take(count);
    std::uint64_t out = 0;
    for (std::size_t i = count; i-- > 0;) out = out << 8 | std::to_integer<std::uint64_t>(part[i]);
    return out;
  }
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("ends too early");
    const auto out = bytes_.subspan(at_, count);
    at_ += count;
    return out;
  }
  std::string text(std::uint64_t count) {
    const auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    std::string out;
    while (true) {
      const char c = static_cast<char>(take(1)[0]);
      if (c == '\n') return out;
      out += c;
    }
  }
  /// One byte back: where something is wrong.
  void back() { --at_; }

 private:
  std::string_view file_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

/// The machine that a pickle is a program for, as far as data needs it.
class Machine {
 public:
  Machine(std::string_view file, std::span<const std::byte> bytes,
          const std::function<bool(std::string_view)>& allowed)
      : tape_(file, bytes), allowed_(allowed) {}

  Pickle run() {
    while (!step()) {
    }
    if (!marks_.empty() || stack_.size() != 1) tape_.refuse("does not end with one value");
    return {stack_.back(), std::move(values_)};
  }

 private:
  Pickled* made(Kind kind, std::vector<PickledPtr> items = {}) {
    return &values_.emplace_back(Pickled{.kind = kind, .items = std::move(items)});
  }
  Pickled* made_integer(std::int64_t value, Kind kind = Kind::integer) {
    Pickled* out = made(kind);
    out->integer = value;
    return out;
  }
  Pickled* made_text(Kind kind, std::string text) {
    Pickled* out = made(kind);
    out->text = std::move(text);
    return out;
  }

  void push(Pickled* value) { stack_.push_back(value); }
  Pickled* pop() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) tape_.refuse("takes a value where there is none");
    Pickled* out = stack_.back();
    stack_.pop_back();
    return out;
  }
  std::vector<PickledPtr> pop(std::size_t count) {
    std::vector<PickledPtr> out(count);
    for (std::size_t i = count; i-- > 0;) out[i] = pop();
    return out;
  }
  std::vector<PickledPtr> pop_to_mark() {
    if (marks_.empty()) tape_.refuse("has no mark");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickledPtr> out(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return out;
  }
  /// The value below, of this kind: what items are put into.
  Pickled& top(Kind kind) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor || !stack_.back()->is(kind))
      tape_.refuse("puts items where none go");
    return *stack_.back();
  }
  void put(Kind kind, const std::vector<PickledPtr>& items) {
    if (kind == Kind::dict && items.size() % 2 != 0) tape_.refuse("has a key without a value");
    auto& into = top(kind).items;
    into.insert(into.end(), items.begin(), items.end());
  }

  void remember(std::uint64_t key) {
    if (stack_.empty()) tape_.refuse("remembers a value where there is none");
    memo_[key] = stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) tape_.refuse("recalls what it did not remember");
    push(found->second);
  }

  void global(const std::string& module, const std::string& name) {
    std::string full = concat(module, ' ', name);
    if (!allowed_(full)) {
      tape_.refuse(
          concat("names ", module, '.', name, ", which no checkpoint needs; it is not read"));
    }
    push(made_text(Kind::global, std::move(full)));
  }
  /// An object, which is not made.
  void object() {
    Pickled* arguments = pop();
    Pickled* callable = pop();
    if (!callable->is(Kind::global) || !arguments->is(Kind::tuple))
      tape_.refuse("calls what is no class");
    if (callable->text == "collections OrderedDict" && arguments->items.empty()) {
      return push(made(Kind::dict));
    }
    push(made(Kind::object, {callable, arguments}));
  }
  void build() {
    Pickled* state = pop();
    Pickled& of = top(Kind::object);
    if (of.items.size() != 2) tape_.refuse("gives an object two states");
    of.items.push_back(state);
  }

  /// Integers of at most 8 bytes, the last of which has the sign.
  void long_integer(std::size_t count) {
    constexpr std::size_t kMost = 8;
    if (count > kMost) tape_.refuse("has an integer of more than 64 bits");
    std::uint64_t value = tape_.number(count);
    if (count > 0 && count < kMost && (value >> (8 * count - 1) & 1) != 0) {
      value |= ~std::uint64_t{0} << (8 * count);
    }
    push(made_integer(static_cast<std::int64_t>(value)));
  }

  /// One opcode; true at the end.
  bool step() {
    const auto opcode = std::to_integer<unsigned char>(tape_.take(1)[0]);
    switch (opcode) {
      case 0x80:  // PROTO
        tape_.take(1);
        return false;
      case 0x95:  // FRAME
        tape_.take(8);
        return false;
      case '.':
        return true;
      default:
        break;
    }
    if (!constant(opcode) && !container(opcode) && !memory(opcode) && !thing(opcode)) {
      tape_.back();
      tape_.refuse(concat("has the opcode ", static_cast<int>(opcode), ", which is not read"));
    }
    return false;
  }

  bool constant(unsigned char opcode) {
    switch (opcode) {
      case 'N':
        push(made(Kind::none));
        return true;
      case 0x88:
      case 0x89:
        push(made_integer(opcode == 0x88 ? 1 : 0, Kind::boolean));
        return true;
      case 'K':
        push(made_integer(static_cast<std::int64_t>(tape_.number(1))));
        return true;
      case 'M':
        push(made_integer(static_cast<std::int64_t>(tape_.number(2))));
        return true;
      case 'J':
        push(made_integer(static_cast<std::int32_t>(tape_.number(4))));
        return true;
      case 0x8a:
        long_integer(tape_.number(1));
        return true;
      case 'G': {
        Pickled* out = made(Kind::number);
        std::uint64_t bits = 0;
        for (const std::byte b : tape_.take(8))
          bits = bits << 8 | std::to_integer<std::uint64_t>(b);
        out->number = std::bit_cast<double>(bits);
        push(out);
        return true;
      }
      case 0x8c:
        push(made_text(Kind::text, tape_.text(tape_.number(1))));
        return true;
      case 'X':
        push(made_text(Kind::text, tape_.text(tape_.number(4))));
        return true;
      case 0x8d:
        push(made_text(Kind::text, tape_.text(tape_.number(8))));
        return true;
      case 'C':
        push(made_text(Kind::bytes, tape_.text(tape_.number(1))));
        return true;
      case 'B':
        push(made_text(Kind::bytes, tape_.text(tape_.number(4))));
        return true;
      default:
        return false;
    }
  }

  bool container(unsigned char opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        push(made(Kind::tuple));
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push(made(Kind::tuple, pop(opcode - 0x84U)));
        return true;
      case 't':
        push(made(Kind::tuple, pop_to_mark()));
        return true;
      case ']':
        push(made(Kind::list));
        return true;
      case 'l':
        push(made(Kind::list, pop_to_mark()));
        return true;
      case 'a':
        put(Kind::list, pop(1));
        return true;
      case 'e':
        put(Kind::list, pop_to_mark());
        return true;
      case '}':
        push(made(Kind::dict));
        return true;
      case 's':
        put(Kind::dict, pop(2));
        return true;
      case 'u':
        put(Kind::dict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool memory(unsigned char opcode) {
    switch (opcode) {
      case 0x94:
        remember(memo_.size());
        return true;
      case 'q':
        remember(tape_.number(1));
        return true;
      case 'r':
        remember(tape_.number(4));
        return true;
      case 'h':
        recall(tape_.number(1));
        return true;
      case 'j':
        recall(tape_.number(4));
        return true;
      case '0':
        pop();
        return true;
      default:
        return false;
    }
  }

  bool thing(unsigned char opcode) {
    switch (opcode) {
      case 'c': {
        const std::string module = tape_.line();
        global(module, tape_.line());
        return true;
      }
      case 0x93: {
        const auto words = pop(2);
        if (!words[0]->is(Kind::text) || !words[1]->is(Kind::text)) tape_.refuse("names no class");
        global(words[0]->text, words[1]->text);
        return true;
      }
      case 'R':
      case 0x81:
        object();
        return true;
      case 'b':
        build();
        return true;
      case 'Q':
        push(made(Kind::persistent, pop(1)));
        return true;
      default:
        return false;
    }
  }

  Tape tape_;
  const std::function<bool(std::string_view)>& allowed_;
  std::deque<Pickled> values_;
  std::vector<Pickled*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Pickled*> memo_;
};

}  // namespace

const Pickled* Pickled::find(std::string_view key) const {
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->is(Kind::text) && items[i]->text == key) return items[i + 1];
  }
  return nullptr;
}

bool Pickled::is_object_of(std::string_view global) const {
  return is(Kind::object) && items[0]->text == global;
}

Pickle parse_pickle(std::string_view file, std::span<const std::byte> bytes,
                    const std::function<bool(std::string_view global)>& allowed) {
  return Machine(file, bytes, allowed).run();
}

}  // namespace intarsia::checkpoint
