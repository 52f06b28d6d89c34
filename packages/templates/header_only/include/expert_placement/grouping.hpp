// Stable grouping of routing ids: the permutation that brings (token, choice) pairs into expert order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace expert_placement {

using Index = std::int64_t;

// A stable permutation into group order.
//   order    [kept]       flat input positions, sorted by group; equal groups keep their input order
//   inverse  [n]          where input position i went in `order`; -1 for a dropped one
//   counts   [groups]     how many positions each group received
//   offsets  [groups + 1] group g owns order[offsets[g] .. offsets[g + 1])
struct Grouping {
  std::vector<Index> order;
  std::vector<Index> inverse;
  std::vector<Index> counts;
  std::vector<Index> offsets;
};

namespace detail {

inline std::vector<Index> exclusive_prefix(const std::vector<Index>& counts) {
  std::vector<Index> offsets(counts.size() + 1, 0);
  for (std::size_t g = 0; g < counts.size(); ++g) offsets[g + 1] = offsets[g] + counts[g];
  return offsets;
}

}  // namespace detail

// Groups `ids[0..n)` by value in O(n + groups) time by counting sort; the id -1 means "dropped".
// Throws std::invalid_argument when groups < 1 or an id lies outside [-1, groups).
inline Grouping group_by(const Index* ids, std::size_t n, Index groups) {
  if (groups < 1) {
    throw std::invalid_argument("the number of groups must be at least 1; found " +
                                std::to_string(groups));
  }
  Grouping out;
  out.counts.assign(static_cast<std::size_t>(groups), 0);
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] < -1 || ids[i] >= groups) {
      throw std::invalid_argument("id " + std::to_string(ids[i]) + " at flat position " +
                                  std::to_string(i) + " is outside [-1, " +
                                  std::to_string(groups) + ")");
    }
    if (ids[i] >= 0) ++out.counts[static_cast<std::size_t>(ids[i])];
  }
  out.offsets = detail::exclusive_prefix(out.counts);
  out.order.resize(static_cast<std::size_t>(out.offsets.back()));
  out.inverse.assign(n, -1);
  std::vector<Index> cursor(out.offsets.begin(), out.offsets.end() - 1);
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] < 0) continue;
    const Index slot = cursor[static_cast<std::size_t>(ids[i])]++;
    out.order[static_cast<std::size_t>(slot)] = static_cast<Index>(i);
    out.inverse[i] = slot;
  }
  return out;
}

}  // namespace expert_placement
