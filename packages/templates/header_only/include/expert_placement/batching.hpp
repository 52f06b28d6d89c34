// Packing of variable-length sequences into microbatches under a token budget (bin packing).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "expert_placement/grouping.hpp"

namespace expert_placement {

// batch_of [n]: the batch of each sequence.  tokens [batches]: the tokens in each batch.
struct Batches {
  std::vector<Index> batch_of;
  std::vector<Index> tokens;
};

namespace detail {

// Checks every length against the budget and returns the total.
inline Index checked_total(const std::vector<Index>& lengths, Index budget) {
  if (budget < 1) {
    throw std::invalid_argument("the token budget must be at least 1; found " +
                                std::to_string(budget));
  }
  Index total = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > budget) {
      throw std::invalid_argument("sequence " + std::to_string(i) + " has " +
                                  std::to_string(lengths[i]) +
                                  " tokens, outside [0, budget = " + std::to_string(budget) +
                                  "]; split it, or raise the budget");
    }
    // One bit is kept free, so that the lower bound may double the total.
    if (lengths[i] > std::numeric_limits<Index>::max() / 2 - total) {
      throw std::invalid_argument("the total number of tokens does not fit in 62 bits");
    }
    total += lengths[i];
  }
  return total;
}

// Indices by descending value; equal values keep their order, so that results are reproducible.
template <typename Value>
std::vector<std::size_t> descending_order(const std::vector<Value>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

// A tournament tree over bins: the leftmost bin that still has `need` tokens free, in O(log n).
class FirstFitTree {
 public:
  FirstFitTree(std::size_t bins, Index capacity) : leaves_(1) {
    while (leaves_ < bins) leaves_ *= 2;
    free_.assign(2 * leaves_, capacity);
  }

  std::size_t take(Index need) {
    std::size_t node = 1;
    while (node < leaves_) node = free_[2 * node] >= need ? 2 * node : 2 * node + 1;
    const std::size_t bin = node - leaves_;
    free_[node] -= need;
    for (node /= 2; node >= 1; node /= 2) free_[node] = std::max(free_[2 * node], free_[2 * node + 1]);
    return bin;
  }

 private:
  std::size_t leaves_;
  std::vector<Index> free_;
};

inline void put(Batches& out, std::size_t item, std::size_t bin, Index length) {
  if (bin == out.tokens.size()) out.tokens.push_back(0);
  out.batch_of[item] = static_cast<Index>(bin);
  out.tokens[bin] += length;
}

}  // namespace detail

// First fit over sequences in descending length. Uses at most 11/9 OPT + 6/9 batches
// (Dosa, "The tight bound of first fit decreasing bin-packing algorithm", 2007). O(n log n).
inline Batches first_fit_decreasing(const std::vector<Index>& lengths, Index budget) {
  detail::checked_total(lengths, budget);
  Batches out{std::vector<Index>(lengths.size()), {}};
  detail::FirstFitTree tree(lengths.size(), budget);
  for (const std::size_t item : detail::descending_order(lengths)) {
    detail::put(out, item, tree.take(lengths[item]), lengths[item]);
  }
  return out;
}

// Best fit over sequences in descending length: the fullest batch that still has room. O(n log n).
inline Batches best_fit_decreasing(const std::vector<Index>& lengths, Index budget) {
  detail::checked_total(lengths, budget);
  Batches out{std::vector<Index>(lengths.size()), {}};
  std::set<std::pair<Index, std::size_t>> open;  // (free tokens, batch)
  for (const std::size_t item : detail::descending_order(lengths)) {
    std::pair<Index, std::size_t> chosen{budget, out.tokens.size()};
    const auto found = open.lower_bound({lengths[item], 0});
    if (found != open.end()) {
      chosen = *found;
      open.erase(found);
    }
    detail::put(out, item, chosen.second, lengths[item]);
    open.insert({chosen.first - lengths[item], chosen.second});
  }
  return out;
}

// The better of the two above: never more than 11/9 OPT + 6/9 batches.
inline Batches pack_sequences(const std::vector<Index>& lengths, Index budget) {
  Batches first = first_fit_decreasing(lengths, budget);
  Batches best = best_fit_decreasing(lengths, budget);
  return best.tokens.size() < first.tokens.size() ? best : first;
}

// Batches of consecutive sequences, in input order. A batch is closed only when the next sequence
// does not fit, which needs the fewest batches of all order-preserving packings (exact). O(n).
inline Batches pack_in_order(const std::vector<Index>& lengths, Index budget) {
  detail::checked_total(lengths, budget);
  Batches out{std::vector<Index>(lengths.size()), {}};
  for (std::size_t item = 0; item < lengths.size(); ++item) {
    const bool fits = !out.tokens.empty() && lengths[item] <= budget - out.tokens.back();
    detail::put(out, item, out.tokens.size() - (fits ? 1 : 0), lengths[item]);
  }
  return out;
}

// A number of batches that no packing can go below: the bound L2 of Martello and Toth (1990),
// which dominates ceil(total / budget). O(n log n).
inline Index batch_lower_bound(const std::vector<Index>& lengths, Index budget) {
  const Index total = detail::checked_total(lengths, budget);
  if (lengths.empty()) return 0;
  const Index capacity = std::min(budget, std::max<Index>(total, 1));
  std::vector<Index> sorted(lengths);
  std::sort(sorted.begin(), sorted.end(), std::greater<Index>());
  std::vector<Index> prefix(sorted.size() + 1, 0);
  std::partial_sum(sorted.begin(), sorted.end(), prefix.begin() + 1);

  // Descending order: [0, large) > capacity - t, [large, half) > capacity / 2, [half, small) >= t.
  const auto first_not = [&](auto predicate) {
    return static_cast<std::size_t>(
        std::distance(sorted.begin(), std::partition_point(sorted.begin(), sorted.end(), predicate)));
  };
  const std::size_t half = first_not([&](Index w) { return w > capacity - w; });
  Index bound = 1;
  for (std::size_t next = half; next <= sorted.size(); ++next) {
    const Index t = next < sorted.size() ? sorted[next] : 0;
    const std::size_t large = first_not([&](Index w) { return w > capacity - t; });
    const std::size_t small = first_not([&](Index w) { return w >= t; });
    const Index middle = static_cast<Index>(half - large);
    const Index room = middle * capacity - (prefix[half] - prefix[large]);
    const Index excess = std::max<Index>(0, prefix[small] - prefix[half] - room);
    const Index extra = excess / capacity + (excess % capacity != 0 ? 1 : 0);
    bound = std::max(bound, static_cast<Index>(half) + extra);
  }
  return bound;
}

}  // namespace expert_placement
