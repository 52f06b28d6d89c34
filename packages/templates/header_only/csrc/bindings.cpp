// The Python face of the headers: arrays in, arrays out, no state. Every function releases the GIL
// while it computes; std::invalid_argument becomes ValueError.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "expert_placement/batching.hpp"
#include "expert_placement/grouping.hpp"
#include "expert_placement/placement.hpp"

namespace py = pybind11;
namespace ep = expert_placement;

namespace {

// No forcecast: the Python layer converts, so a wrong dtype here is a mistake and raises TypeError.
using Indices = py::array_t<ep::Index, py::array::c_style>;
using Loads = py::array_t<double, py::array::c_style>;

template <typename Value>
std::vector<Value> copy_in(const py::array_t<Value, py::array::c_style>& array) {
  return std::vector<Value>(array.data(), array.data() + array.size());
}

// Hands the vector's storage to NumPy, which frees it with the array.
template <typename Value>
py::array_t<Value> hand_over(std::vector<Value>&& values) {
  auto* owner = new std::vector<Value>(std::move(values));
  py::capsule free_owner(owner, [](void* p) { delete static_cast<std::vector<Value>*>(p); });
  return py::array_t<Value>(static_cast<py::ssize_t>(owner->size()), owner->data(), free_owner);
}

py::tuple hand_over(ep::Grouping&& g) {
  return py::make_tuple(hand_over(std::move(g.order)), hand_over(std::move(g.inverse)),
                        hand_over(std::move(g.counts)), hand_over(std::move(g.offsets)));
}

py::tuple place_experts(const Loads& load, ep::Index ranks, ep::Index slots_per_rank) {
  const std::vector<double> values = copy_in(load);
  ep::Placement out;
  {
    py::gil_scoped_release release;
    out = ep::place_experts(values, ranks, slots_per_rank);
  }
  return py::make_tuple(hand_over(std::move(out.physical_to_logical)),
                        hand_over(std::move(out.replica_count)),
                        hand_over(std::move(out.rank_load)), out.lower_bound);
}

py::tuple pack_balanced(const Loads& weight, ep::Index ranks) {
  const std::vector<double> values = copy_in(weight);
  ep::Packing out;
  double bound = 0.0;
  {
    py::gil_scoped_release release;
    out = ep::pack_balanced(values, ranks);
    bound = ep::packing_lower_bound(values, ranks);
  }
  return py::make_tuple(hand_over(std::move(out.rank_of)), hand_over(std::move(out.rank_load)),
                        bound);
}

py::array_t<ep::Index> replicate(const Loads& load, ep::Index slots) {
  return hand_over(ep::replicate(copy_in(load), slots));
}

py::tuple pack_sequences(const Indices& lengths, ep::Index budget, bool keep_order) {
  const std::vector<ep::Index> values = copy_in(lengths);
  ep::Batches out;
  ep::Index bound = 0;
  {
    py::gil_scoped_release release;
    out = keep_order ? ep::pack_in_order(values, budget) : ep::pack_sequences(values, budget);
    bound = ep::batch_lower_bound(values, budget);
  }
  return py::make_tuple(hand_over(std::move(out.batch_of)), hand_over(std::move(out.tokens)), bound);
}

py::tuple group_by(const Indices& ids, ep::Index groups) {
  const ep::Index* data = ids.data();
  const std::size_t size = static_cast<std::size_t>(ids.size());
  ep::Grouping out;
  {
    py::gil_scoped_release release;
    out = ep::group_by(data, size, groups);
  }
  return hand_over(std::move(out));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Array-level binding of the expert_placement headers; use the package, not this module.";
  m.def("place_experts", &place_experts, py::arg("load").noconvert(), py::arg("ranks"),
        py::arg("slots_per_rank"));
  m.def("pack_balanced", &pack_balanced, py::arg("weight").noconvert(), py::arg("ranks"));
  m.def("replicate", &replicate, py::arg("load").noconvert(), py::arg("slots"));
  m.def("pack_sequences", &pack_sequences, py::arg("lengths").noconvert(), py::arg("budget"),
        py::arg("keep_order"));
  m.def("group_by", &group_by, py::arg("ids").noconvert(), py::arg("groups"));
}
