// The cheapest way from one layout to another, the slow and obvious way: lists of the positions
// that every rank holds, every layout a node, every pair of layouts an edge, and Dijkstra's
// algorithm. Written from the text above make_plan alone; knows nothing of src/plan/.
#pragma once

#include <bitset>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/plan.h"

namespace intarsia::testing {

constexpr double kNoWay = std::numeric_limits<double>::infinity();

/// What one step from a layout to another costs, and how it would be done.
struct StepPrice {
  StepKind kind = StepKind::slice;
  std::uint32_t group = 0;  ///< a bit for each axis
  double seconds = kNoWay;
};

/// All layouts of a tensor that are of use on the way, and the prices between them.
class ExhaustiveSearch {
 public:
  using Node = std::size_t;

  /// `partial` is the one kind of terms that layouts may have.
  ExhaustiveSearch(const Mesh& mesh, std::vector<std::int64_t> shape, std::int64_t element_size,
                   Placement partial);
  ~ExhaustiveSearch();

  /// Prices follow this topology from now on; REQUIRES: it lives as long.
  void use(const Topology& topology);

  /// The nodes that may stand on every way: those that cut no dimension into more parts than it has
  /// elements. They come first.
  std::size_t count_on_the_way() const { return on_the_way_; }
  /// The node of a layout, which may be any. Nothing, where the positions it cuts at are not among
  /// those that the lists tell apart, or its terms are of another kind.
  std::optional<Node> node(const Layout& layout);
  /// A layout that a node stands for.
  Layout layout(Node node) const;
  bool has_blocks(Node node) const;

  StepPrice price(Node from, Node to);
  /// The seconds of the cheapest way. On it stand nodes that fit, and others that cut each
  /// dimension as one of the two does, by all axes or by some; terms only along axes that have them
  /// before or after.
  double seconds(Node from, Node to);
  /// The nodes of that way. REQUIRES: there is one.
  std::vector<Node> path(Node from, Node to);

 private:
  struct Cut;
  struct Change;
  struct NodeData {
    std::vector<int> cuts;  // for each dimension, by number
    std::uint32_t terms = 0;
    double share = 1;
  };
  using CutKey = std::vector<std::pair<int, std::int64_t>>;

  int cut_of(std::size_t dim, const CutKey& key);
  void list_cuts();
  void list_nodes(std::size_t dim, std::uint32_t used, std::vector<int>& cuts);
  Node add(const std::vector<int>& cuts, std::uint32_t terms);
  const Change& change(std::size_t dim, int from, int to);
  StepPrice price_of_new_terms(const NodeData& x, const NodeData& y, std::uint32_t needs) const;
  StepPrice cheaper_of_collectives(const NodeData& x, const NodeData& y, std::uint32_t group,
                                   std::uint32_t reduced);
  const Link& link(std::uint32_t group);
  const std::vector<double>& row(Node from);
  bool fits(Node node) const;
  std::vector<Node> allowed(Node from, Node to) const;
  void search(Node from, std::optional<Node> to, const std::vector<Node>& way);
  double ranks_of(std::uint32_t axes) const;

  Mesh mesh_;
  std::vector<std::int64_t> shape_;
  double bytes_;
  Placement partial_;
  const Topology* topology_ = nullptr;
  std::vector<Coordinate> ranks_;
  std::vector<std::int64_t> scaled_;  // a length for each dimension that all cuts divide
  std::vector<std::vector<std::int64_t>> splits_;        // numbers of blocks, for each dimension
  std::vector<std::vector<std::unique_ptr<Cut>>> cuts_;  // for each dimension
  std::vector<std::map<CutKey, int>> cut_numbers_;
  std::vector<std::vector<std::vector<std::unique_ptr<Change>>>> changes_;
  std::vector<NodeData> nodes_;
  std::map<std::pair<std::vector<int>, std::uint32_t>, Node> node_numbers_;
  std::size_t on_the_way_ = 0;
  std::vector<const Link*> links_;
  std::vector<std::vector<double>> rows_;
  std::vector<Node> all_that_fit_;
  std::optional<Node> source_;  // of the distances below
  std::optional<Node> target_;  // where they end there; else they lead everywhere
  std::vector<double> distance_;
  std::vector<Node> before_;
  struct Known {
    std::vector<double> distance;
    std::vector<Node> before;
  };
  std::uint32_t terms_ = 0;               // axes that may have terms on the way
  std::map<std::uint32_t, Known> known_;  // distances from one source, by these
};

}  // namespace intarsia::testing
