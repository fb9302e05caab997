#include "pipeline/run/stage_graph.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

namespace intarsia::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// The edges of a node, to be changed. ATen lets nobody take one away from a node that others lead
/// to, since it numbers nodes by depth, and a new edge might lead to a deeper one. None is added
/// here.
edge_list& edges_of(Node& node) {
  struct Open : Node {
    static edge_list& of(Node& node) { return node.*(&Open::next_edges_); }
  };
  return Open::of(node);
}

/// What the nodes of a graph lead to: some input, something else that takes gradients, or both.
class Graph {
 public:
  Graph(const edge_list& roots, const edge_list& inputs) {
    for (const Edge& input : inputs) found_[input.function.get()] = {.to_input = true};
    for (const Edge& root : roots) visit(root.function.get());
  }

  bool leads_to_input(const Edge& e) const { return at(e).to_input; }
  bool leads_to_weights_alone(const Edge& e) const { return at(e).to_weights && !at(e).to_input; }
  /// Nodes on the way to inputs from which an edge leads to weights alone.
  std::vector<Node*> forks() const {
    std::vector<Node*> out;
    for (Node* node : order_) {
      if (!found_.at(node).to_input) continue;
      for (const Edge& e : node->next_edges()) {
        if (!e.is_valid() || !leads_to_weights_alone(e)) continue;
        out.push_back(node);
        break;
      }
    }
    return out;
  }

 private:
  struct Found {
    bool to_input = false;
    bool to_weights = false;
  };

  Found at(const Edge& e) const { return found_.at(e.function.get()); }

  /// Depth first, without recursion: graphs may be deep.
  void visit(Node* root) {
    struct Open {
      Node* node;
      std::size_t next = 0;
    };
    std::vector<Open> open;
    const auto enter = [&](Node* node) {
      if (found_.contains(node)) return;
      // A node that leads nowhere keeps what it gets: a leaf.
      found_[node].to_weights = node->next_edges().empty();
      order_.push_back(node);
      open.push_back({node});
    };
    enter(root);
    while (!open.empty()) {
      Open& top = open.back();
      if (top.next < top.node->next_edges().size()) {
        const Edge& e = top.node->next_edge(top.next++);
        if (e.is_valid()) enter(e.function.get());
        continue;
      }
      Found all = found_[top.node];
      for (const Edge& e : top.node->next_edges()) {
        if (!e.is_valid()) continue;
        all.to_input |= at(e).to_input;
        all.to_weights |= at(e).to_weights;
      }
      found_[top.node] = all;
      open.pop_back();
    }
  }

  std::unordered_map<Node*, Found> found_;
  std::vector<Node*> order_;  // the same for all ranks, which run the same graph
};

variable_list run(const edge_list& roots, const variable_list& gradients, bool keeps_graph,
                  const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, keeps_graph, /*create_graph=*/false,
      /*accumulate_grad=*/outputs.empty(), outputs);
}

}  // namespace

StageGraph::StageGraph(Tensors inputs, const Tensors& outputs) : inputs_(std::move(inputs)) {
  for (const at::Tensor& output : outputs) {
    const bool trains = output.defined() && output.requires_grad();
    outputs_.push_back(trains ? torch::autograd::impl::gradient_edge(output) : Edge());
  }
}

std::vector<StageGraph::Start> StageGraph::starts(const Tensors& gradients) const {
  std::vector<Start> out;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].is_valid() && gradients[i].defined())
      out.push_back({outputs_[i], gradients[i]});
  }
  return out;
}

Tensors StageGraph::taken_gradients() const {
  Tensors out;
  for (const at::Tensor& input : inputs_) {
    out.push_back(input.defined() ? std::exchange(at::Tensor(input).mutable_grad(), {})
                                  : at::Tensor());
  }
  return out;
}

Tensors StageGraph::backward(const Tensors& gradients) {
  edge_list roots;
  variable_list given;
  for (Start& start : starts(gradients)) {
    roots.push_back(std::move(start.edge));
    given.push_back(std::move(start.gradient));
  }
  outputs_.clear();
  if (!roots.empty()) run(roots, given, /*keeps_graph=*/false, {});
  return taken_gradients();
}

Tensors StageGraph::input_gradients(const Tensors& gradients) {
  edge_list inputs;
  for (const at::Tensor& input : inputs_) {
    if (input.defined() && input.requires_grad()) {
      inputs.push_back(torch::autograd::impl::gradient_edge(input));
    }
  }
  edge_list roots;
  variable_list given;
  const std::vector<Start> begin = starts(gradients);
  for (const Start& start : begin) roots.push_back(start.edge);
  const Graph graph(roots, inputs);
  roots.clear();
  for (const Start& start : begin) {
    if (graph.leads_to_input(start.edge)) {
      roots.push_back(start.edge);
      given.push_back(start.gradient);
    } else {
      weights_.push_back(start);
    }
  }
  outputs_.clear();
  if (roots.empty()) return Tensors(inputs_.size());

  const std::vector<Node*> forks = graph.forks();
  edge_list caught = inputs;
  for (Node* node : forks) {
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i) {
      caught.emplace_back(node->getptr(), i);
    }
  }
  const variable_list found = run(roots, given, /*keeps_graph=*/true, caught);
  for (std::size_t i = inputs.size(); i < caught.size(); ++i) {
    if (found[i].defined()) weights_.push_back({caught[i], found[i]});
  }
  for (Node* node : forks) {
    for (Edge& e : edges_of(*node)) {
      if (e.is_valid() && graph.leads_to_input(e)) e = Edge();
    }
  }
  Tensors out;
  std::size_t next = 0;
  for (const at::Tensor& input : inputs_) {
    const bool trains = input.defined() && input.requires_grad();
    out.push_back(trains ? found[next++] : at::Tensor());
  }
  return out;
}

void StageGraph::weight_gradients() {
  edge_list roots;
  variable_list given;
  for (Start& start : weights_) {
    roots.push_back(std::move(start.edge));
    given.push_back(std::move(start.gradient));
  }
  weights_.clear();
  if (!roots.empty()) run(roots, given, /*keeps_graph=*/false, {});
}

}  // namespace intarsia::pipeline
