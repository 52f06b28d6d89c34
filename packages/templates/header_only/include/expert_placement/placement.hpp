// Load-balanced placement of mixture-of-experts experts onto ranks with a fixed number of slots.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "expert_placement/batching.hpp"
#include "expert_placement/grouping.hpp"

namespace expert_placement {

// rank_of [items]: the rank of each item.  rank_load [ranks]: the sum of its items' weights.
struct Packing {
  std::vector<Index> rank_of;
  std::vector<double> rank_load;
};

// A placement of `experts` experts onto `ranks * slots_per_rank` physical slots.
//   physical_to_logical [slots]    the expert in each slot; rank r owns slots [r * S, (r + 1) * S)
//   replica_count       [experts]  how many slots hold the expert (at least 1)
//   rank_load           [ranks]    the load of each rank; an expert's load splits evenly over its replicas
//   lower_bound                    no placement with these replica counts has a smaller maximum
struct Placement {
  std::vector<Index> physical_to_logical;
  std::vector<Index> replica_count;
  std::vector<double> rank_load;
  double lower_bound = 0.0;
};

namespace detail {

inline void check_loads(const std::vector<double>& loads, const char* what) {
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (!std::isfinite(loads[i]) || loads[i] < 0.0) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(i) + " has load " +
                                  std::to_string(loads[i]) +
                                  "; a load must be finite and not negative");
    }
  }
}

inline std::size_t slots_of(std::size_t items, Index ranks) {
  if (ranks < 1 || items == 0 || items % static_cast<std::size_t>(ranks) != 0) {
    throw std::invalid_argument(std::to_string(items) + " items cannot fill " +
                                std::to_string(ranks) + " ranks with equally many slots each");
  }
  return items / static_cast<std::size_t>(ranks);
}

// The members of each rank during construction; small, because a rank has few slots.
struct Ranks {
  std::vector<std::vector<std::size_t>> items;
  std::vector<double> load;

  explicit Ranks(std::size_t ranks) : items(ranks), load(ranks, 0.0) {}

  void add(std::size_t rank, std::size_t item, double weight) {
    items[rank].push_back(item);
    load[rank] += weight;
  }

  double worst() const { return *std::max_element(load.begin(), load.end()); }
};

// One layer of `ranks` items at a time, the heaviest of the layer onto the least loaded rank.
inline Ranks pack_layers(const std::vector<double>& weight, const std::vector<std::size_t>& order,
                         std::size_t ranks) {
  Ranks out(ranks);
  std::vector<std::size_t> by_load(ranks);
  for (std::size_t begin = 0; begin < order.size(); begin += ranks) {
    std::iota(by_load.begin(), by_load.end(), std::size_t{0});
    std::stable_sort(by_load.begin(), by_load.end(),
                     [&](std::size_t a, std::size_t b) { return out.load[a] < out.load[b]; });
    for (std::size_t k = 0; k < ranks; ++k) {
      out.add(by_load[k], order[begin + k], weight[order[begin + k]]);
    }
  }
  return out;
}

// Longest processing time first, among the ranks that have a free slot.
inline Ranks pack_longest_first(const std::vector<double>& weight,
                                const std::vector<std::size_t>& order, std::size_t ranks,
                                std::size_t slots) {
  Ranks out(ranks);
  using Entry = std::pair<double, std::size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> open;
  for (std::size_t r = 0; r < ranks; ++r) open.push({0.0, r});
  for (const std::size_t item : order) {
    const std::size_t rank = open.top().second;
    open.pop();
    out.add(rank, item, weight[item]);
    if (out.items[rank].size() < slots) open.push({out.load[rank], rank});
  }
  return out;
}

struct Swap {
  std::size_t mine = 0, rank = 0, theirs = 0;
  double worst = std::numeric_limits<double>::infinity();
};

// The exchange of one item of `from` with one of another rank that lowers the worse of both most.
inline Swap best_swap(const std::vector<double>& weight, const Ranks& ranks, std::size_t from) {
  Swap best;
  for (std::size_t other = 0; other < ranks.items.size(); ++other) {
    if (other == from || ranks.load[other] >= ranks.load[from]) continue;
    for (std::size_t i = 0; i < ranks.items[from].size(); ++i) {
      for (std::size_t j = 0; j < ranks.items[other].size(); ++j) {
        const double moved = weight[ranks.items[from][i]] - weight[ranks.items[other][j]];
        if (moved <= 0.0) continue;
        const double worst = std::max(ranks.load[from] - moved, ranks.load[other] + moved);
        if (worst < best.worst) best = {i, other, j, worst};
      }
    }
  }
  return best;
}

// Swaps that strictly lower the heaviest rank, until none does (or the cap, against rounding loops).
inline void improve(const std::vector<double>& weight, Ranks& ranks) {
  const std::size_t cap = 16 * weight.size();
  for (std::size_t round = 0; round < cap; ++round) {
    const std::size_t from = static_cast<std::size_t>(
        std::distance(ranks.load.begin(), std::max_element(ranks.load.begin(), ranks.load.end())));
    const Swap swap = best_swap(weight, ranks, from);
    if (!(swap.worst < ranks.load[from] * (1.0 - 1e-12))) return;
    std::size_t& mine = ranks.items[from][swap.mine];
    std::size_t& theirs = ranks.items[swap.rank][swap.theirs];
    const double moved = weight[mine] - weight[theirs];
    ranks.load[from] -= moved;
    ranks.load[swap.rank] += moved;
    std::swap(mine, theirs);
  }
}

// Loads are summed anew, so that they do not carry the rounding of the swaps.
inline Packing finish(const std::vector<double>& weight, Ranks ranks) {
  Packing out{std::vector<Index>(weight.size()), std::vector<double>(ranks.items.size(), 0.0)};
  for (std::size_t r = 0; r < ranks.items.size(); ++r) {
    std::sort(ranks.items[r].begin(), ranks.items[r].end());
    for (const std::size_t item : ranks.items[r]) {
      out.rank_of[item] = static_cast<Index>(r);
      out.rank_load[r] += weight[item];
    }
  }
  return out;
}

}  // namespace detail

// How many replicas each expert gets so that the heaviest replica is as light as possible.
// Giving the next slot to the expert with the largest load per replica is optimal: it minimises
// max(load[e] / count[e]) over all counts >= 1 that sum to `slots`. O(slots log experts).
inline std::vector<Index> replicate(const std::vector<double>& load, Index slots) {
  detail::check_loads(load, "expert");
  if (load.empty() || slots < static_cast<Index>(load.size())) {
    throw std::invalid_argument(std::to_string(load.size()) + " experts do not fit in " +
                                std::to_string(slots) + " slots: every expert needs one");
  }
  std::vector<Index> count(load.size(), 1);
  const auto lighter = [&](std::size_t a, std::size_t b) {
    const double per_a = load[a] / static_cast<double>(count[a]);
    const double per_b = load[b] / static_cast<double>(count[b]);
    if (per_a != per_b) return per_a < per_b;
    return count[a] != count[b] ? count[a] > count[b] : a > b;
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(lighter)> heap(lighter);
  for (std::size_t e = 0; e < load.size(); ++e) heap.push(e);
  for (Index extra = slots - static_cast<Index>(load.size()); extra > 0; --extra) {
    const std::size_t heaviest = heap.top();
    heap.pop();
    ++count[heaviest];
    heap.push(heaviest);
  }
  return count;
}

// A value that the heaviest rank of no balanced packing can go below: the mean, and for every k the
// pigeonhole bound (one rank holds k + 1 of the k * ranks + 1 heaviest items, and fills its other
// slots with nothing lighter than the lightest items). O(n log n).
inline double packing_lower_bound(const std::vector<double>& weight, Index ranks) {
  const std::size_t slots = detail::slots_of(weight.size(), ranks);
  const std::size_t count = static_cast<std::size_t>(ranks);
  std::vector<double> sorted(weight);
  std::sort(sorted.begin(), sorted.end(), std::greater<double>());
  double bound = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(ranks);
  for (std::size_t k = 0; k < slots; ++k) {
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(k * count + 1);
    const double heavy = std::accumulate(end - static_cast<std::ptrdiff_t>(k + 1), end, 0.0);
    const auto rest = sorted.end() - static_cast<std::ptrdiff_t>(slots - k - 1);
    bound = std::max(bound, std::accumulate(rest, sorted.end(), heavy));
  }
  return bound;
}

// Packs n items onto `ranks` ranks with exactly n / ranks items each, minimising the heaviest rank.
// Guarantee: heaviest - lightest <= D before the swaps, where D is the largest spread (max - min)
// inside one layer of `ranks` consecutive items in descending order; hence
//   heaviest <= mean + (1 - 1 / ranks) * D <= (2 - 1 / ranks) * OPT,
// which the swaps only improve. Exact for one rank, for one slot per rank, and for equal weights.
// Ties are broken by the lower index, so equal input gives equal output.
inline Packing pack_balanced(const std::vector<double>& weight, Index ranks) {
  detail::check_loads(weight, "item");
  const std::size_t slots = detail::slots_of(weight.size(), ranks);
  const std::size_t count = static_cast<std::size_t>(ranks);
  const std::vector<std::size_t> order = detail::descending_order(weight);
  detail::Ranks layered = detail::pack_layers(weight, order, count);
  detail::Ranks longest = detail::pack_longest_first(weight, order, count, slots);
  detail::improve(weight, layered);
  detail::improve(weight, longest);
  return detail::finish(weight, longest.worst() < layered.worst() ? longest : layered);
}

// Replicates, then packs. With replicas that share their expert's load evenly, the heaviest rank is
// at most (2 - 1 / ranks) times the optimum over all replica counts and all placements: the mean does not
// depend on the counts, and `replicate` makes the heaviest replica as light as it can be.
inline Placement place_experts(const std::vector<double>& load, Index ranks, Index slots_per_rank) {
  if (ranks < 1 || slots_per_rank < 1) {
    throw std::invalid_argument("ranks and slots per rank must be at least 1; found " +
                                std::to_string(ranks) + " and " + std::to_string(slots_per_rank));
  }
  if (slots_per_rank > std::numeric_limits<Index>::max() / ranks) {
    throw std::invalid_argument("ranks * slots per rank does not fit in 63 bits");
  }
  Placement out;
  out.replica_count = replicate(load, ranks * slots_per_rank);
  std::vector<Index> expert_of;
  std::vector<double> weight;
  for (std::size_t e = 0; e < load.size(); ++e) {
    const std::size_t copies = static_cast<std::size_t>(out.replica_count[e]);
    expert_of.insert(expert_of.end(), copies, static_cast<Index>(e));
    weight.insert(weight.end(), copies, load[e] / static_cast<double>(copies));
  }
  Packing packing = pack_balanced(weight, ranks);
  const Grouping slots = group_by(packing.rank_of.data(), packing.rank_of.size(), ranks);
  out.physical_to_logical.reserve(slots.order.size());
  for (const Index item : slots.order) {
    out.physical_to_logical.push_back(expert_of[static_cast<std::size_t>(item)]);
  }
  out.rank_load = std::move(packing.rank_load);
  out.lower_bound = packing_lower_bound(weight, ranks);
  return out;
}

}  // namespace expert_placement
