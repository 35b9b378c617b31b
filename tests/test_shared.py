"""Memory that processes share, and objects whose tensors lie in it."""

from __future__ import annotations

import copy
import gc
import os

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs.normalizer import Normalizer, Standardized
from populora_envs.routing import PlainModel
from populora_envs.shared import ALIGNMENT, Block, Packed, Place, unpack
from tests.populations import numbers, population

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
SHAPES = [(), (0,), (3, 0), (1,), (5,), (2, 3, 4)]


def in_a_copy(function):
    """Call a function in a fork of this process; return its exit code, 0 where all went well."""
    pid = os.fork()
    if not pid:
        try:
            function()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def written(packed):
    block = Block(packed.size)
    packed.write(block)
    return block


def round_trip(thing):
    packed = Packed(thing)
    return unpack(packed.structure, packed.places, written(packed))


# --- blocks


def test_what_a_copy_of_the_process_writes_is_seen_here():
    block = Block(64)
    numbers_here = block.array((4,), np.int64)
    tensor = block.tensor(Place((2,), torch.float32, 48))

    def write():
        block.array((4,), np.int64)[:] = [1, 2, 3, 4]
        tensor[1] = 0.5

    assert in_a_copy(write) == 0
    assert numbers_here.tolist() == [1, 2, 3, 4]
    assert tensor.tolist() == [0.0, 0.5]


def test_what_is_written_here_is_seen_in_a_copy_that_began_before():
    block, (ready, go) = Block(8), os.pipe()
    shown = block.array((1,), np.int64)

    def check():
        os.read(ready, 1)
        assert shown[0] == 7

    pid = os.fork()
    if not pid:
        try:
            check()
            os._exit(0)
        except BaseException:
            os._exit(1)
    shown[0] = 7
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(ready)
    os.close(go)


def test_a_second_block_on_the_same_descriptor_is_the_same_memory():
    first = Block(32)
    second = Block(32, os.dup(first.descriptor))
    first.array((4,), np.float64)[2] = 1.5
    assert second.array((2,), np.float64, 16).tolist() == [1.5, 0.0]


def test_new_memory_holds_zeros_and_an_empty_block_may_be_made():
    assert not Block(256).array((256,), np.uint8).any()
    assert Block(0).array((0,), np.float32).shape == (0,)


def test_closing_twice_is_harmless_and_views_stay():
    block = Block(16)
    descriptor, view = block.descriptor, block.array((2,), np.int64)
    view[:] = 5
    block.close()
    block.close()
    assert not is_open(descriptor)
    assert view.tolist() == [5, 5]
    view[0] = 6
    assert block.array((1,), np.int64).tolist() == [6]


def test_a_block_that_is_dropped_leaves_no_file_open_and_its_tensors_whole():
    block = Block(16)
    descriptor, tensor = block.descriptor, block.tensor(Place((4,), torch.float32, 0))
    tensor.fill_(2.0)
    del block
    gc.collect()
    assert not is_open(descriptor)
    assert tensor.tolist() == [2.0] * 4


# --- tensors in a block


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_tensor_comes_back_to_the_last_bit(dtype, shape):
    tensor = (numbers(*shape) * 10).to(dtype)
    before, found, after = round_trip([torch.ones(1), tensor, torch.ones(3)])
    assert (found.dtype, found.shape) == (dtype, shape)
    assert torch.equal(found, tensor)
    assert (before.tolist(), after.tolist()) == ([1.0], [1.0] * 3)


def test_numbers_that_are_not_finite_come_back():
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    assert round_trip(strange).view(torch.int32).tolist() == strange.view(torch.int32).tolist()


def test_every_tensor_begins_at_a_multiple_of_the_alignment_and_none_overlap():
    sizes = [1, 0, 63, 64, 65, 7]
    packed = Packed([torch.zeros(size, dtype=torch.uint8) for size in sizes])
    offsets = [place.offset for place in packed.places]
    assert [offset % ALIGNMENT for offset in offsets] == [0] * len(sizes)
    assert offsets == [0, 64, 64, 128, 192, 320]
    assert packed.size == 384


@pytest.mark.parametrize(
    "tensor",
    [
        numbers(3, 4).t(),
        numbers(6)[::2],
        numbers(3, 1).expand(3, 4),
        numbers(2, 3, 4).permute(2, 0, 1),
        numbers(8)[3:],
    ],
    ids=["transposed", "strided", "expanded", "permuted", "offset"],
)
def test_tensors_that_are_not_contiguous_come_back_as_numbers(tensor):
    assert torch.equal(round_trip(tensor), tensor)


def test_tensors_of_inference_mode_come_back():
    with torch.inference_mode():
        tensor = torch.arange(3.0)
    assert round_trip(tensor).tolist() == [0.0, 1.0, 2.0]


def test_what_has_no_tensors_comes_back():
    assert round_trip({"a": (1, "b", None)}) == {"a": (1, "b", None)}
    assert Packed(None).size == 0


def test_functions_and_classes_of_a_script_travel():
    scale = 3

    class Local:
        def __init__(self, weight):
            self.weight = weight

        def __call__(self, x):
            return scale * self.weight * x

    assert round_trip(Local(torch.tensor(2.0)))(5).item() == 30.0


# --- what is one object and what is a parameter


def test_one_tensor_in_two_places_stays_one():
    tensor = numbers(4)
    packed = Packed({"a": tensor, "b": [tensor], "c": tensor.clone()})
    assert len(packed.tensors) == 2
    found = unpack(packed.structure, packed.places, written(packed))
    assert found["a"] is found["b"][0]
    assert found["a"] is not found["c"]


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    found = round_trip(model)
    assert found[0].weight is found[2].weight
    assert len(list(found.parameters())) == 3


def test_parameters_stay_parameters_and_say_whether_they_want_gradients():
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    found = round_trip(model)
    assert isinstance(found.weight, nn.Parameter)
    assert isinstance(found.bias, nn.Parameter)
    assert (found.weight.requires_grad, found.bias.requires_grad) == (True, False)
    assert found.weight.is_leaf
    assert [name for name, _ in found.named_parameters()] == ["weight", "bias"]


def test_buffers_and_modes_come_back():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).eval()
    model[0].running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    model[0].num_batches_tracked.fill_(9)
    found = round_trip(model)
    assert found[0].running_mean.tolist() == [1.0, 2.0, 3.0]
    assert found[0].num_batches_tracked.item() == 9
    assert not found.training
    assert not found[1].training


# --- keys


def test_other_numbers_have_the_same_key_and_are_written_into_the_same_memory():
    one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    packed = Packed(one)
    block = written(packed)
    found = unpack(packed.structure, packed.places, block)
    assert Packed(other).key == packed.key
    Packed(other).write(block)
    assert torch.equal(found.weight, other.weight)
    assert torch.equal(found.bias, other.bias)


@pytest.mark.parametrize(
    "other",
    [nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Linear(2, 3, dtype=torch.float64)],
    ids=["turned", "without bias", "wider"],
)
def test_another_structure_has_another_key(other):
    assert Packed(other).key != Packed(nn.Linear(2, 3)).key


@pytest.mark.parametrize("targets", [None, "0"], ids=["all layers", "one layer"])
def test_a_population_keeps_its_key_while_it_plays_and_evolves(targets):
    pop = population(lora_targets=targets)
    key = Packed(pop.routed).key
    pop.routed(numbers(4, 2), torch.arange(4))
    assert Packed(pop.routed).key == key
    pop.evolve_(torch.arange(4.0))
    pop.routed(numbers(4, 2), torch.arange(4))
    assert Packed(pop.routed).key == key


def test_a_policy_has_one_key_whatever_its_weights():
    one, other = PlainModel(nn.Linear(2, 1)), PlainModel(nn.Linear(2, 1))
    assert Packed(one).key == Packed(other).key


# --- whole policies


def models():
    torch.manual_seed(0)
    return {
        "sequential": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)),
        "wide": nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Linear(96, 3)),
        "half": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).bfloat16(),
        "double": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double(),
        "norm": nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
        "statistics": Standardized(
            Normalizer(2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        ),
    }


def outputs(routed, pop):
    x = numbers(9, 2).to(next(pop.model.parameters()).dtype)
    return routed(x, torch.arange(9) % pop.pop_size)


@pytest.mark.parametrize("targets", [None, "*0"], ids=["all layers", "one layer"])
@pytest.mark.parametrize("kind", models())
def test_a_population_in_shared_memory_gives_the_same_bits_also_after_it_has_evolved(kind, targets):
    pop = population(models()[kind], lora_targets=targets)
    packed = Packed(pop.routed)
    block = written(packed)
    there = unpack(packed.structure, packed.places, block)
    first = outputs(pop.routed, pop)
    assert torch.equal(outputs(there, pop), first)
    for fitnesses in ([0.0, 3.0, 1.0, 2.0], [5.0, 4.0, 9.0, 1.0]):
        pop.evolve_(torch.tensor(fitnesses), epsilon=0.5)
        if pop.normalizer is not None:
            pop.normalizer.shift.add_(1.0)
            pop.normalizer.divisor.mul_(0.5)
        Packed(pop.routed).write(block)
        there.forget()
        assert torch.equal(outputs(there, pop), outputs(pop.routed, pop))
    assert not torch.equal(outputs(there, pop), first)


def test_arrays_go_through_a_normaliser_in_shared_memory():
    pop = population(models()["statistics"])
    packed = Packed(pop.routed)
    block = written(packed)
    there = unpack(packed.structure, packed.places, block)
    x, ids = numbers(4, 2).numpy(), torch.arange(4)
    for shift in (0.0, 1.0):
        pop.normalizer.shift.fill_(shift)
        packed.write(block)
        there.forget()
        assert np.array_equal(there(x, ids), pop.routed(x, ids))


def test_a_copy_of_what_lies_in_shared_memory_has_its_own_numbers():
    model = nn.Linear(2, 3)
    packed = Packed(model)
    block = written(packed)
    own = copy.deepcopy(unpack(packed.structure, packed.places, block))
    Packed(nn.Linear(2, 3)).write(block)
    assert torch.equal(own.weight, model.weight)
