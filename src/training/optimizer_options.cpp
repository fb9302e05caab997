#include "training/optimizer_options.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>
#include <set>
#include <tuple>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

namespace optim = torch::optim;
using checkpoint::Json;

// ---- the options of each optimizer: `visit` is called with a name and a reference, `is` with what
// Python keeps as an option and C++ as another class

template <class Options, class Visit>
void visit_adam(Options& o, const Visit& visit, bool is_decoupled) {
  visit("lr", o.lr());
  visit("betas", o.betas());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
  visit.is("decoupled_weight_decay", is_decoupled);
}

template <class Visit>
bool visit_options(optim::OptimizerOptions& options, const Visit& visit) {
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) {
    visit_adam(*adam, visit, false);
  } else if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(&options)) {
    visit_adam(*adamw, visit, true);
  } else if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* adagrad = dynamic_cast<optim::AdagradOptions*>(&options)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
    visit("eps", adagrad->eps());
  } else if (auto* rmsprop = dynamic_cast<optim::RMSpropOptions*>(&options)) {
    visit("lr", rmsprop->lr());
    visit("alpha", rmsprop->alpha());
    visit("eps", rmsprop->eps());
    visit("weight_decay", rmsprop->weight_decay());
    visit("momentum", rmsprop->momentum());
    visit("centered", rmsprop->centered());
  } else if (auto* muon = dynamic_cast<MuonOptions*>(&options)) {
    visit("lr", muon->lr());
    visit("weight_decay", muon->weight_decay());
    visit("momentum", muon->momentum());
    visit("nesterov", muon->nesterov());
    visit("ns_coefficients", muon->iteration().coefficients);
    visit("eps", muon->iteration().epsilon);
    visit("ns_steps", muon->iteration().steps);
    visit("adjust_lr_fn", muon->scale());
    visit("ns_dtype", muon->iteration().dtype);
  } else {
    return false;
  }
  return true;
}

constexpr const char* kTuple = "__tuple__";
constexpr const char* kDtype = "__dtype__";

Json dtype_json(at::ScalarType type) {
  const auto dtype = dtype_of(type);
  return {{kDtype, dtype ? to_text(*dtype) : "unknown"}};
}

std::string scale_word(MuonScale scale) {
  return scale == MuonScale::original ? "original" : "match_rms_adamw";
}

struct Write {
  Json& out;

  template <class Value>
  void operator()(const char* name, const Value& value) const {
    out[name] = value;
  }
  void operator()(const char* name, const std::tuple<double, double>& pair) const {
    out[name] = {{kTuple, {std::get<0>(pair), std::get<1>(pair)}}};
  }
  void operator()(const char* name, const std::array<double, 3>& values) const {
    out[name] = {{kTuple, values}};
  }
  void operator()(const char* name, MuonScale scale) const { out[name] = scale_word(scale); }
  void operator()(const char* name, at::ScalarType type) const { out[name] = dtype_json(type); }
  void is(const char* name, bool value) const { out[name] = value; }
};

struct Read {
  std::string_view where;
  const Json& saved;
  const std::string& group;
  bool only_check;
  std::set<std::string>& known;

  void operator()(const char* name, bool& value) const { read(name, &Json::is_boolean, value); }
  void operator()(const char* name, double& value) const { read(name, &Json::is_number, value); }
  void operator()(const char* name, std::int64_t& value) const {
    read(name, &Json::is_number_integer, value);
  }
  void operator()(const char* name, std::tuple<double, double>& pair) const {
    std::array<double, 2> values{};
    if (read_tuple(name, values)) pair = {values[0], values[1]};
  }
  void operator()(const char* name, std::array<double, 3>& values) const {
    std::array<double, 3> read_values{};
    if (read_tuple(name, read_values)) values = read_values;
  }
  void operator()(const char* name, MuonScale& scale) const {
    const Json* json = find(name);
    if (json == nullptr) return;
    const bool is_default = json->is_null();  // Python's None is the original one
    if (!is_default && *json != scale_word(MuonScale::original) &&
        *json != scale_word(MuonScale::match_rms_adamw)) {
      refuse(name, *json);
    }
    if (only_check) return;
    scale = is_default || *json == scale_word(MuonScale::original) ? MuonScale::original
                                                                   : MuonScale::match_rms_adamw;
  }
  void operator()(const char* name, at::ScalarType& type) const {
    const Json* json = find(name);
    if (json == nullptr) return;
    const bool has_word =
        json->is_object() && json->contains(kDtype) && (*json)[kDtype].is_string();
    const auto dtype = has_word ? parse_dtype((*json)[kDtype].get<std::string>()) : std::nullopt;
    if (!dtype) refuse(name, *json);
    if (!only_check) type = scalar_type(*dtype);
  }
  void is(const char* name, bool value) const {
    const Json* json = find(name);
    if (json != nullptr && *json != value) refuse(name, *json);
  }

  /// Options that are no matter of mathematics, or not in use.
  void check_others() const {
    static const std::set<std::string> kAnyValue{"foreach", "fused", "capturable", "differentiable",
                                                 "initial_lr"};
    for (const auto& [name, value] : saved.items()) {
      const bool is_unused = value.is_null() || value == false;
      if (!known.contains(name) && !kAnyValue.contains(name) && !is_unused) refuse(name, value);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const Json& value) const {
    fail<ValueError>(where, group, " has ", name, " = ", value.dump(),
                     " there, which this optimizer cannot have; nothing was changed");
  }

  const Json* find(const char* name) const {
    known.insert(name);
    const auto found = saved.find(name);
    return found == saved.end() ? nullptr : &*found;
  }

  template <class Value>
  void read(const char* name, bool (Json::*is_kind)() const noexcept, Value& value) const {
    const Json* json = find(name);
    if (json == nullptr) return;
    if (!(json->*is_kind)()) refuse(name, *json);
    if (!only_check) value = json->get<Value>();
  }

  /// Whether it is there, and to be set.
  template <std::size_t kSize>
  bool read_tuple(const char* name, std::array<double, kSize>& values) const {
    const Json* json = find(name);
    if (json == nullptr) return false;
    const Json& list = json->is_object() && json->contains(kTuple) ? (*json)[kTuple] : *json;
    if (!list.is_array() || list.size() != kSize) refuse(name, *json);
    for (std::size_t i = 0; i < kSize; ++i) {
      if (!list[i].is_number()) refuse(name, *json);
      values[i] = list[i].get<double>();
    }
    return !only_check;
  }
};

}  // namespace

Json options_json(std::string_view where, optim::OptimizerOptions& options) {
  Json out = Json::object();
  if (visit_options(options, Write{out})) return out;
  fail<UnsupportedError>(
      where,
      "knows Adam, AdamW, SGD, Adagrad, RMSprop and Muon only; save others' tensors by name");
}

void set_options(std::string_view where, optim::OptimizerOptions& options, const Json& saved,
                 const std::string& name, bool only_check) {
  std::set<std::string> known;
  const Read read{where, saved, name, only_check, known};
  visit_options(options, read);
  read.check_others();
}

}  // namespace intarsia
