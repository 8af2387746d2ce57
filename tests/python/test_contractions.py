"""Matrix products as kernels: sizes, dtypes, layouts, what is fused around them, special values, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.accuracy import check_all, to_double

Tensors = tuple[torch.Tensor, ...]


pytestmark = pytest.mark.usefixtures("nothing_kept")


def check(found: Any, eager: Any, exact: Any) -> None:
    """As good as eager; float64 beside eager alone, which is no more exact."""
    if isinstance(eager, torch.Tensor) and eager.dtype == torch.float64:
        torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-11)
    else:
        check_all(found, eager, exact)


def check_jit(function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False) -> None:
    """`mlcc.jit` is as good as eager, judged against float64, and lies in memory as eager's result does."""
    with torch.no_grad():
        eager = function(*args)
        exact = function(*to_double(list(args)))
        found = mlcc.jit(function, dynamic=dynamic)(*args)
    check(found, eager, exact)
    assert found.stride() == eager.stride()


def check_module(module: torch.nn.Module, *args: torch.Tensor) -> None:
    """The module's compiled calls are as good as eager's, the first one and one with packs that are kept."""
    with torch.no_grad():
        eager = module(*args)
        exact = copy.deepcopy(module).double()(*to_double(list(args)))
        compiled = mlcc.jit(module, dynamic=False)
        check(compiled(*args), eager, exact)
        check(compiled(*args), eager, exact)


SIZES = [1, 2, 3, 5, 7, 12, 13, 17, 31, 64, 100]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (5, 3), (32, 64), (33, 100), (77, 333)])
def test_sizes_of_linear(rows: int, columns: int, depth: int) -> None:
    check_module(torch.nn.Linear(depth, columns), torch.randn(rows, depth))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("depth", [1, 2, 63, 64, 1000])
def test_dtypes_of_linear(dtype: torch.dtype, depth: int) -> None:
    check_module(torch.nn.Linear(depth, 70, dtype=dtype), torch.randn(9, depth, dtype=dtype))
    check_jit(torch.mm, torch.randn(70, depth).to(dtype), torch.randn(depth, 40).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("depth", [3, 5, 65, 257, 1023])
@pytest.mark.parametrize("rows", [1, 12, 31])
def test_odd_depths(dtype: torch.dtype, depth: int, rows: int) -> None:
    check_module(torch.nn.Linear(depth, 70, dtype=dtype), torch.randn(rows, depth, dtype=dtype))
    a, b = torch.randn(2, 260, depth).to(dtype), torch.randn(2, depth, 40).to(dtype)
    check_jit(torch.bmm, a, b)
    check_jit(torch.bmm, a, b, dynamic=True)


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(100, 77, 8200), (301, 530, 2501)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_long_sums_in_turns(
    cpu: str, rows: int, columns: int, depth: int, dtype: torch.dtype, dynamic: bool
) -> None:
    """Rows of which few fit a cache: panels take turns at parts of them."""
    x, w = torch.randn(rows, depth, dtype=dtype), torch.randn(columns, depth, dtype=dtype)
    with mlcc.config.patch(cpu=cpu):
        check_jit(lambda x, w: F.linear(x, w).relu() + 1, x, w, dynamic=dynamic)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "x86-64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_cpus(cpu: str, dtype: torch.dtype) -> None:
    if cpu == "skylake-avx512" and not torch.cpu._is_avx512_supported():
        pytest.skip("no AVX-512 here")
    with mlcc.config.patch(cpu=cpu):
        check_module(torch.nn.Linear(66, 70, dtype=dtype), torch.randn(9, 66, dtype=dtype))
        check_jit(torch.mm, torch.randn(70, 66).to(dtype), torch.randn(66, 40).to(dtype))


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="no AVX-512 here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [64, 185, 250, 1100])
@pytest.mark.parametrize("depth", [5, 300, 4200])
def test_wide_tiles(dtype: torch.dtype, columns: int, depth: int) -> None:
    """Where loads are scarce: rows known and not, few where many were expected, and long sums in turns."""
    # With more threads, 1,100 columns are too few for turns.
    weight, bias = torch.randn(columns, depth, dtype=dtype), torch.randn(columns, dtype=dtype)

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias).relu() + x[:, :1]

    def check_exact(found: torch.Tensor, exact: torch.Tensor) -> None:
        # Libraries err by 1 to 7 epsilons, as their sums have many parts or few, and in float64 the exact one does too.
        epsilons = 16 if dtype == torch.float32 else 32
        most = epsilons * torch.finfo(dtype).eps * exact.abs().max().item()
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=most)

    linear = torch.nn.Linear(depth, columns, dtype=dtype)
    exact_linear = copy.deepcopy(linear).double()
    with mlcc.config.patch(cpu="skylake-avx512", num_threads=2), torch.no_grad():
        compiled, with_packs = mlcc.jit(layer), mlcc.jit(linear)
        for rows in (230, 1, 5, 6, 7, 12, 13, 40):
            x = torch.randn(rows, depth, dtype=dtype)
            exact = layer(*to_double([x, weight, bias]))
            check_exact(compiled(x, weight, bias), exact)
            check_exact(with_packs(x), exact_linear(x.double()))
        for rows in (230, 40):
            x = torch.randn(rows, depth, dtype=dtype)
            check_exact(mlcc.jit(linear, dynamic=False)(x), exact_linear(x.double()))


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="no AVX-512 here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("columns", "depth"), [(1100, 4096), (2050, 2047), (4097, 1026)])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_row_of_panels_side_by_side(
    dtype: torch.dtype, columns: int, depth: int, threads: int
) -> None:
    """Where prefetchers stop at pages: weights beyond a second-level cache, one product and several of the same row."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = (torch.nn.Linear(depth, columns) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.silu(self.gate(x)) * self.up(x)

    x = torch.randn(1, depth, dtype=dtype)
    with mlcc.config.patch(cpu="skylake-avx512", num_threads=threads):
        check_module(torch.nn.Linear(depth, columns, dtype=dtype), x)
        check_module(Gated().to(dtype), x)


@pytest.mark.parametrize("threads", [1, 3, 1000, 2**62])
@pytest.mark.parametrize("rows", [1, 64])
def test_any_number_of_threads(threads: int, rows: int) -> None:
    """More than there are, too: parts are as many as they can be."""
    with mlcc.config.patch(num_threads=threads):
        check_module(torch.nn.Linear(770, 768), torch.randn(rows, 770))


@pytest.mark.parametrize("rows", [1, 4, 6, 12, 13, 23, 25, 100])
def test_rows_that_are_symbols(rows: int) -> None:
    weight, bias = torch.randn(40, 300), torch.randn(40)
    compiled = mlcc.jit(F.linear)
    with torch.no_grad():
        for count in (rows, rows + 1, 1):
            args = (torch.randn(count, 300), weight, bias)
            check_all(compiled(*args), F.linear(*args), F.linear(*to_double(list(args))))


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(0, 5, 3), (64, 0, 3), (64, 5, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_elements(rows: int, columns: int, depth: int, dynamic: bool) -> None:
    check_jit(torch.mm, torch.randn(rows, depth), torch.randn(depth, columns), dynamic=dynamic)


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13])
@pytest.mark.parametrize(
    ("columns", "depth"), [(33, 9), (1500, 100), (2080, 7), (5000, 33), (1100, 9001)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_few_long_rows(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(3, rows, depth).to(dtype), torch.randn(3, depth, columns).to(dtype)
    for dynamic in (False, True):
        check_jit(torch.mm, a[0], b[0], dynamic=dynamic)
        check_jit(lambda a, b: torch.relu(a @ b + 1), a, b, dynamic=dynamic)
    check_jit(torch.mm, a[0], torch.cat([b[0], b[0]], 1)[:, 3 : columns - 2])


def strided(rows: int, columns: int, form: str) -> torch.Tensor:
    """A matrix that lies in memory in one of several ways."""
    if form == "transposed":
        return torch.randn(columns, rows).t()
    if form == "columns apart":
        return torch.randn(rows, 2 * columns)[:, ::2]
    if form == "part":
        return torch.randn(rows + 3, columns + 5)[1:-2, 2:-3]
    if form == "repeated":
        return torch.randn(1, columns).expand(rows, columns)
    return torch.randn(rows, columns)


FORMS = ["dense", "transposed", "columns apart", "part", "repeated"]


@pytest.mark.parametrize("left", FORMS)
@pytest.mark.parametrize("right", FORMS)
@pytest.mark.parametrize("rows", [5, 80])
def test_layouts(left: str, right: str, rows: int) -> None:
    check_jit(torch.mm, strided(rows, 50, left), strided(50, 37, right))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [3, 70])
def test_batches(rows: int, dynamic: bool) -> None:
    a, b = torch.randn(4, rows, 33), torch.randn(4, 33, 50)
    check_jit(torch.bmm, a, b, dynamic=dynamic)
    check_jit(torch.bmm, a, torch.randn(4, 50, 33).transpose(1, 2), dynamic=dynamic)
    check_jit(torch.matmul, a, torch.randn(33, 50), dynamic=dynamic)
    check_jit(torch.matmul, torch.randn(2, 4, rows, 33), b, dynamic=dynamic)


@pytest.mark.parametrize("beta", [1, 0, 0.5])
@pytest.mark.parametrize("alpha", [1, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_with_products(beta: float, alpha: float, dtype: torch.dtype) -> None:
    def sum_of(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)

    a, b = torch.randn(70, 33).to(dtype), torch.randn(33, 50).to(dtype)
    for c in (torch.randn(50), torch.randn(70, 50), torch.randn(70, 1)):
        check_jit(sum_of, c.to(dtype), a, b)

    def batch_sum(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)

    check_jit(
        batch_sum, torch.randn(3, 70, 50).to(dtype), torch.stack([a] * 3), torch.stack([b] * 3)
    )


def test_what_is_not_added_may_be_nan() -> None:
    c = torch.full((70, 50), torch.nan)
    a, b = torch.randn(70, 33), torch.randn(33, 50)
    found = mlcc.jit(lambda c, a, b: torch.addmm(c, a, b, beta=0))(c, a, b)
    assert torch.allclose(found, a @ b, atol=1e-4)


EPILOGUES: list[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda y, r, m: F.gelu(y) + r,
    lambda y, r, m: torch.where(m, y, torch.full_like(y, -1.0)).relu(),
    lambda y, r, m: (y * 0.125).to(torch.bfloat16),
    lambda y, r, m: y.view(5, 14, 50).transpose(1, 2).contiguous(),
    lambda y, r, m: y.t() + 1,
    lambda y, r, m: (y + r).softmax(-1),
    lambda y, r, m: F.layer_norm(y + r, (50,)),
    lambda y, r, m: y.sum(0),
    lambda y, r, m: torch.cat([y, r], 1),
    lambda y, r, m: y.view(70, 25, 2)[..., 0] * 2,
    lambda y, r, m: y.cumsum(1),
    lambda y, r, m: y.tril(1),
    lambda y, r, m: y.view(70, 5, 10).tril(),
    lambda y, r, m: torch.where(torch.arange(10) < 3, y.view(70, 5, 10), 0.0),
    lambda y, r, m: y.view(7, 10, 50).triu(1),
    lambda y, r, m: y + torch.arange(70)[:, None],
]


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_follows(
    epilogue: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], dynamic: bool
) -> None:
    mask = torch.rand(70, 50) > 0.5
    check_jit(
        lambda a, b, r, m: epilogue(a @ b, r, m),
        torch.randn(70, 33),
        torch.randn(33, 50),
        torch.randn(70, 50),
        mask,
        dynamic=dynamic,
    )


def test_results_that_several_read() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Tensors:
        y = a @ b
        return y, y.relu(), y.square().sum(), (y * 2) @ b.t()

    a, b = torch.randn(70, 33), torch.randn(33, 50)
    check_all(mlcc.jit(f, dynamic=False)(a, b), f(a, b), f(a.double(), b.double()))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("depth", [40, 700])
def test_values_that_are_not_finite(value: float, depth: int) -> None:
    a, b = torch.randn(70, depth), torch.randn(depth, 50)
    a[3, 5] = value
    b[7, 11] = value
    found, eager = mlcc.jit(torch.mm)(a, b), a @ b
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.equal(found.isinf(), eager.isinf())
    assert torch.equal(found.sign().nan_to_num(), eager.sign().nan_to_num())


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_half_a_pair_ends_where_its_row_does(value: float) -> None:
    """The elements behind it are those of the next row, or none."""
    linear = torch.nn.Linear(333, 45, dtype=torch.bfloat16)
    x = torch.randn(13, 333, dtype=torch.bfloat16)
    x[1::2, 0] = value
    with torch.no_grad():
        found = mlcc.jit(linear, dynamic=False)(x)
    assert found[::2].isfinite().all()
    assert not found[1::2].isfinite().any()


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_column(dynamic: bool) -> None:
    check_jit(
        lambda a, b: (a @ b).tril(1), torch.randn(5, 8, 33), torch.randn(33, 1), dynamic=dynamic
    )
    check_jit(
        lambda a, b: (a @ b).relu(), torch.randn(300, 99), torch.randn(99, 1), dynamic=dynamic
    )


def test_sums_that_eager_refuses_or_does_not_look_at() -> None:
    a, b, c = torch.randn(70, 33), torch.randn(33, 50), torch.randn(50)
    with pytest.raises(RuntimeError, match="dtype"):
        mlcc.jit(torch.addmm)(c.bfloat16(), a, b)
    a[0, 0] = torch.nan
    nothing = mlcc.jit(lambda c, a, b: torch.addmm(c, a, b, alpha=0))
    assert torch.equal(nothing(c, a, b), torch.addmm(c, a, b, alpha=0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [3, 70])
def test_integers_wrap(dtype: torch.dtype, rows: int) -> None:
    info = torch.iinfo(dtype)
    a = torch.randint(info.min, info.max, (rows, 36), dtype=dtype)
    b = torch.randint(info.min, info.max, (36, 50), dtype=dtype)
    assert torch.equal(mlcc.jit(torch.mm)(a, b), a @ b)


@pytest.mark.parametrize("depth", [3, 5, 36, 64, 99, 638, 1000])
@pytest.mark.parametrize("rows", [70, 300])
@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_bytes(depth: int, rows: int, dynamic: bool) -> None:
    a = torch.randint(-128, 128, (rows, depth), dtype=torch.int8)
    b = torch.randint(-128, 128, (depth, 48), dtype=torch.int8)
    assert torch.equal(mlcc.jit(torch._int_mm, dynamic=dynamic)(a, b), torch._int_mm(a, b))


@pytest.mark.parametrize("rows", [1, 70, 300])
def test_unsigned_bytes_times_signed_ones(rows: int) -> None:
    a = torch.randint(0, 256, (rows, 99), dtype=torch.uint8)
    b = torch.randint(-128, 128, (99, 48), dtype=torch.int8)
    with mlcc.config.patch(prefer="code"):
        assert torch.equal(mlcc.jit(torch._int_mm)(a, b), torch._int_mm(a, b))
    with pytest.raises(RuntimeError, match="int8"):
        mlcc.jit(torch._int_mm)(a, b.view(torch.uint8))


def test_factors_that_are_no_integers() -> None:
    a = torch.randint(-9, 9, (70, 33), dtype=torch.int32)
    b, c = a.T.contiguous(), torch.randint(-9, 9, (70, 70), dtype=torch.int32)

    def sums(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, a, b, alpha=1.5, beta=2.5)

    assert torch.equal(mlcc.jit(sums)(c, a, b), sums(c, a, b))


@pytest.mark.parametrize(
    ("left", "right"), [((3, 4), (5, 6)), ((3,), (4, 5)), ((2, 3, 4), (3, 4, 5))]
)
def test_wrong_shapes_raise_what_eager_raises(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = torch.randn(left), torch.randn(right)
    with pytest.raises(RuntimeError) as eager:
        torch.matmul(a, b)
    with pytest.raises(RuntimeError) as found:
        mlcc.jit(torch.matmul)(a, b)
    assert str(found.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_threads_give_the_same_bits() -> None:
    module = torch.nn.Linear(700, 333)
    x = torch.randn(129, 700)
    compiled = mlcc.jit(module, dynamic=False)
    before = torch.get_num_threads()
    results = []
    with torch.no_grad():
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    torch.set_num_threads(before)
    assert all(torch.equal(results[0], result) for result in results)


def test_weights_that_change_are_packed_again() -> None:
    module = torch.nn.Linear(64, 48)
    x = torch.randn(9, 64)
    compiled = mlcc.jit(module, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), module(x))
            module.weight.mul_(1.5)
            torch.testing.assert_close(compiled(x), module(x))
            module.weight.data.add_(1.0)
    assert mlcc.cache_info()["packs"] >= 1


def test_a_step_of_training() -> None:
    def losses(step: Callable[[torch.Tensor], torch.Tensor], model: torch.nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        found = []
        for _ in range(5):
            loss = step(torch.randn(70, 40))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(40, 90), torch.nn.GELU(), torch.nn.Linear(90, 10)
        )

    ours, theirs = make(), make()
    compiled = torch.compile(lambda x: ours(x).square().mean(), backend="mlcc")
    found = losses(compiled, ours)
    expected = losses(lambda x: theirs(x).square().mean(), theirs)
    assert found == pytest.approx(expected, rel=1e-4)


def test_calls_when_switched_off() -> None:
    module = torch.nn.Linear(64, 48)
    x = torch.randn(9, 64)
    with torch.no_grad(), mlcc.config.patch(contractions=False):
        torch.testing.assert_close(mlcc.jit(module)(x), module(x))
    assert mlcc.cache_info()["packs"] == 0


@pytest.mark.parametrize("columns", [17, 24, 40, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_last_panels_that_are_half_filled_up(dtype: torch.dtype, columns: int) -> None:
    torch.manual_seed(0)
    for rows, terms in ((5, 64), (64, 7), (130, 513)):
        layer = torch.nn.Linear(terms, columns).to(dtype)
        x = torch.randn(rows, terms).to(dtype)
        exact = x.double() @ layer.weight.double().mT + layer.bias.double()
        with torch.no_grad():
            got, expected = mlcc.jit(layer, dynamic=False)(x), layer(x)
        error = (expected.double() - exact).abs().max()
        rounding = terms * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert (got.double() - exact).abs().max() <= 3 * error + rounding


def test_products_of_an_image_with_itself() -> None:
    """Passes moved a permute from one operand to the other and back, without an end."""

    def squares(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...i,...i->...", x, x)

    x = torch.randn(4, 1, 3, 8)[..., ::2]
    found = torch.compile(squares, backend="mlcc", dynamic=False)(x)
    torch.testing.assert_close(found, squares(x))
