#include "parallel/model/named_parameters.h"

#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia {

std::vector<NamedParameter> parameters_of(std::string_view where,
                                          const torch::optim::Optimizer& optimizer,
                                          const torch::nn::Module& module) {
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<NamedParameter> out;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto name = names.find(parameters[i].unsafeGetTensorImpl());
      if (name == names.end()) {
        fail<ValueError>(where, "parameter ", i, " of group ", g, ", ", describe(parameters[i]),
                         ", is none of the module's; pass the module that the optimizer trains");
      }
      out.push_back({name->second, parameters[i]});
    }
  }
  return out;
}

std::string state_key(const std::string& name, const std::string& part) {
  return concat("state.", name, '.', part);
}
std::string rate_key(std::size_t group) { return concat("param_groups.", group, ".lr"); }

}  // namespace intarsia
