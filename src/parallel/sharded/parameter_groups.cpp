#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/fully_shard.h"
#include "intarsia/pattern.h"

namespace intarsia {
namespace {

bool is_inside(std::string_view name, std::string_view module) {
  return name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.';
}

/// The elements of the outermost containers that hold modules in a row.
void find_blocks(const torch::nn::Module& module, const std::string& name,
                 std::vector<std::string>& out) {
  const bool row = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
                   (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr);
  for (const auto& child : module.named_children()) {
    const std::string path = name.empty() ? child.key() : concat(name, '.', child.key());
    if (row) {
      out.push_back(path);
    } else {
      find_blocks(*child.value(), path, out);
    }
  }
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const NamedTensors& parameters,
                                             const std::vector<std::string>& modules) {
  std::vector<ParameterGroup> out;
  bool neighbours = false;  // whether the last group is of parameters outside the modules
  for (const auto& [name, tensor] : parameters) {
    const auto inside =
        std::find_if(modules.begin(), modules.end(),
                     [&](const std::string& module) { return is_inside(name, module); });
    if (inside == modules.end()) {
      if (!neighbours) out.push_back({.name = name, .parameters = {}});
      neighbours = true;
      out.back().parameters.push_back({name, tensor});
      continue;
    }
    neighbours = false;
    const auto known = std::find_if(out.begin(), out.end(),
                                    [&](const ParameterGroup& g) { return g.name == *inside; });
    ParameterGroup& group =
        known != out.end() ? *known : out.emplace_back(ParameterGroup{.name = *inside});
    group.parameters.push_back({name, tensor});
  }
  return out;
}

std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& module,
                                             const std::vector<std::string>& blocks) {
  std::vector<std::string> modules;
  if (blocks.empty()) {
    find_blocks(module, "", modules);
  } else {
    std::vector<std::string> names;
    for (const auto& item : module.named_modules("", false)) names.push_back(item.key());
    for (const std::string& pattern : blocks) {
      bool any = false;
      for (const std::string& name : names) {
        if (!matches_parts(name, pattern)) continue;
        modules.push_back(name);
        any = true;
      }
      if (!any) {
        fail<ValueError>("fully_shard", "'", pattern, "' fits none of the modules ",
                         join(names, ", "));
      }
    }
  }
  return parameter_groups(named_tensors(module.named_parameters()), modules);
}

ShardedBuild plan_sharded_build(const Mesh& mesh, const NamedTensors& parameters,
                                const NamedTensors& buffers, const LayoutPatterns& patterns,
                                const FullyShardOptions& options) {
  ShardedBuild out;
  std::vector<bool> used(patterns.size(), false);
  const auto layout_of_name = [&](const std::string& name, std::size_t dims) {
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!matches(name, patterns[i].first)) continue;
      used[i] = true;
      return Layout::parse(patterns[i].second, mesh, {.dims = dims});
    }
    return Layout::replicated(mesh);
  };
  for (const auto& [name, tensor] : parameters) {
    const auto dims = static_cast<std::size_t>(tensor.dim());
    out.use.push_back(layout_of_name(name, dims));
    out.stored.emplace_back(name,
                            sharded_layout(out.use.back(), dims, options, name).placements_text());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto dims = static_cast<std::size_t>(tensor.dim());
    out.stored.emplace_back(name, layout_of_name(name, dims).placements_text());
  }
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (used[i]) continue;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : parameters) names.push_back(name);
    fail<ValueError>("build_sharded", "pattern '", patterns[i].first,
                     "' decides about none of: ", join(names, ", "));
  }
  return out;
}

}  // namespace intarsia
