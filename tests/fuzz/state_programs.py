"""Random programs around states, views and copies, called several times; see torch_programs.py.

States are a module's buffers or attributes, or arguments that every call is given; arguments of a call may be views of
one tensor, which overlap differently in each call. {h} is a state or a view of one.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.fuzz.program_run import Subject, run_program
from tests.fuzz.torch_programs import FLOATS, Draft, Input, Program, templates

VALUES = """
{a} * 2 | {a} + {b} | {a} - {b} | {f}.tanh() | {a} * {c} | {a}.relu() | {f}.sigmoid() * {b} | -{a} | {a} + {c}
{a}.sum({d}, keepdim=True) | {a}.cumsum({d}) | {f}.mean({d}) | {a}.amax({d}) | torch.where({a} > {b}, {a}, {c})
{f}.softmax({d}) | torch.cat([{a}, {b}], {d}) | torch.stack([{a}, {b}]) | torch.lerp({f}, {f}, 0.3) | {a}.roll(1, {d})
{f} @ {f}.mT | {a}.double() | {a} > {b} | {a}.index_select({d}, {i}) | {a}.flip({d}) | {a}.long()
torch.empty_like({a}).copy_({b})
"""
VIEWS = """
{a}.t() | {a}.unsqueeze(0) | {a}[-1] | {a}[0] | {a}[1:] | {a}[:-1] | {a}.view(-1) | {a}.expand(2, *{a}.shape)
{a}.mT | {a}[..., ::2] | {a}[None] | {a}.narrow({d}, 0, 1) | {a}.select({d}, 0) | {a}.detach() | {a}.view({a}.shape)
{a}.reshape(-1) | {a}.squeeze() | {a}.diagonal() | {a}.chunk(2, {d})[1] | {a}.unbind({d})[-1] | {a}[...]
{a}.flatten() | {a}.contiguous() | {a}.to({a}.dtype) | {a}.permute(*reversed(range({a}.dim())))
{a}.as_strided((2,), (1,), 1)
"""
COPIES = """
{a}.clone() | {h}.clone() | {a}.clone() | {h}.detach().clone() | {h}.t().clone() | {h}[-1].clone() | {h} + 0 | {h} * 1
{h}.new_tensor(0) + {h} | torch.empty_like({h}).copy_({h}) | {h}.contiguous().clone() | {h}.to(torch.float64)
"""
WRITES = """
{h}.copy_({a}) | {h}.copy_({a})
{h}.copy_({a}) | {h}.add_({b}) | {h}.mul_(0.5).add_({b}) | {h}[{s}] = {b} | {h}[{i}] = {c}
{h}.index_put_(({i},), {b}) | {h}.index_put_(({i},), {h}[{i}], accumulate=True) | {h}[{s}:] = {b} | {h}[:, {s}] = {b}
{h}.index_copy_({d}, {i}[:1], {h}.narrow({d}, -1, 1).clone()) | {h}.zero_() | {h}.fill_({c}) | {h}.lerp_({b}, 0.25)
{h}.t().copy_({b}) | {h}.view(-1)[{s}:].mul_(2) | {h}.select({d}, 0).copy_({h}.select({d}, -1).clone())
{h}.copy_({h}.roll(1, {d})) | {h}[:-1] = {h}[1:].clone() | {h}.masked_fill_({h} > 1, {c}) | {h}.clamp_(-2, 2)
{h}.index_add_({d}, {i}, {h}.index_select({d}, {i}).clone()) | {h}.sub_({h}.mean())
{h} += {b} | {h}.diagonal().add_({k})
{h}.scatter_({d}, torch.zeros_like({h}, dtype=torch.long), {b}) | {h}.narrow({d}, 0, 1).copy_({b}) | {h}.neg_()
{h}.set_({h}.clone())
{a}.add_({b}) | {a}.copy_({b}) | {a}.mul_({c}) | {a}[{s}] = {c} | {a}.t().add_(1) | {a}[{i}] = {c} | {a}.zero_()
"""
# For modules, under Dynamo: mlcc.jit runs what changes a module's attributes eagerly.
ATTRIBUTES = """
{g} = {a} | {g} = {a}.detach() | {g} = {g} + {a} | seen.append({a}) | seen.append({h}) | seen.append({h}.clone())
"""
# Several statements, of which {r} is the last value: what becomes a state, and what is returned of it.
IDIOMS = """
{f} * 2 + {h} ; {h}.copy_({r}) ; {r}.t() | {f} + {h} ; {h}.copy_({r}) ; {r}[-1]
{a} - {h} ; {h}.copy_({r}) ; {r}.unsqueeze(0) | {h} * 0.5 + {a} ; {h}.copy_({r}) ; {r}.view(-1)
{h} + {a} ; {h}.copy_({r}) ; {r}.clone() | {h}.roll(1, 0) ; {h}.copy_({r}) ; {r}[1:]
{h}.clone() ; {h}.add_({a}) ; {r} - {h} | {h}.t().clone() ; {h}.zero_() ; {r}
{h}[-1].clone() ; {h}[-1] = {a}[0] ; {r}[None] | {a} * 3 ; {h}.view(-1).copy_({r}.view(-1)) ; {r}.mT
{a} + {h} ; {h}.t().copy_({r}.t()) ; {r}[..., ::2] | {h} * 2 ; {h}[:2].copy_({r}[:2]) ; {r}[:2]
{a} * {h} ; {h}[...] = {r} ; {r}.expand(2, *{r}.shape) ; {r}[0] | {a}.exp() ; {h}[:1] = {r}[:1] ; {r}[:1].t()
{h} + 1 ; {h}.set_({r}) ; {r}.t() | {h}.detach() + {a} ; {h}.copy_({r}) ; {r}.reshape(-1)
{a} * {b} ; {a}.copy_({r}) ; {r}.t() | {a} + 1 ; {b}.copy_({r}) ; {r}[-1:]
{a}.relu() ; {h}.copy_({r}) ; {r}.diagonal()
{h} + {a} ; {h}.index_copy_(0, torch.arange({h}.shape[0]), {r}) ; {r}[-1]
{a} + {h} ; {h}.copy_({r}) ; {r} * 1 ; {r}.t() | {a} - {h} ; {h}.copy_({r}) ; {h}.t()
{a} - {h} ; {h}.copy_({r}) ; {h}[-1].clone() | {a} - {h} ; {h}.copy_({r}) ; {r}.add_(1)
"""
KINDS = [
    (templates(IDIOMS), 3, False),
    (templates(VALUES), 4, False),
    (templates(VIEWS), 3, False),
    (templates(COPIES), 2, False),
    (templates(WRITES), 4, True),
    (templates(ATTRIBUTES), 1, True),
]
WRITE = re.compile(r"_\(| = ")
DYNAMIC_SHARE = 0.15
# Parts of a base that is three rows longer than an argument.
PARTS = ("[:-3]", "[1:-2]", "[2:-1]", "[3:]")
SHAPES = ((4,), (4, 4), (3, 5), (2, 8), (5, 1), (3, 4, 4), (6, 3), (17, 4))


def draw_state_program(seed: int) -> Program:
    """The program of that seed."""
    draft = Draft(seed)
    program = _draw_frame(draft.random)
    inputs = program.make_inputs()
    for place, state in enumerate(inputs[: program.num_states]):
        draft.values[f"h{place}"] = state
    bases = inputs[program.num_states :]
    for place, argument in enumerate(program.arguments(0, bases)):
        draft.values[f"x{place}"] = argument
    kinds = KINDS if program.holder and program.entry == "compile" else KINDS[:-1]
    wanted = draft.random.randint(2, 8)
    for _ in range(6 * wanted):
        if len(draft.statements) >= wanted:
            break
        ((choices, _, writes),) = draft.random.choices(kinds, [weight for _, weight, _ in kinds])
        for template in draft.random.choice(choices).split(" ; "):
            draft.try_statement(template, writes or bool(WRITE.search(template)))
    program = replace(program, statements=tuple(draft.statements), outputs=_draw_outputs(draft))
    return program if _eager_takes(program) else _without_overlap(program)


def _draw_frame(chosen: random.Random) -> Program:
    """All but the statements and the outputs."""
    shape = chosen.choice(SHAPES)
    dtype = chosen.choice((*FLOATS, "float32", "int64"))
    num_states, num_bases = chosen.randint(1, 3), chosen.randint(1, 2)

    def state() -> Input:
        own = (chosen.choice((2, 3)), *shape) if chosen.random() < 0.25 else shape
        layout = chosen.choice(("", "", "", "[1:]", ".mT" if len(own) > 1 else ""))
        return Input(own, dtype, chosen.randrange(1 << 20), layout)

    inputs = [state() for _ in range(num_states)]
    longer = (shape[0] + 3, *shape[1:])
    inputs += [Input(longer, dtype, chosen.randrange(1 << 20), "") for _ in range(num_bases)]
    num_arguments = chosen.randint(1, 2)
    calls = tuple(
        tuple(f"b{chosen.randrange(num_bases)}{chosen.choice(PARTS)}" for _ in range(num_arguments))
        for _ in range(chosen.choice((2, 3, 3)))
    )
    holder = chosen.choice(("", "buffers", "buffers", "attributes"))
    entry = chosen.choice(("compile", "jit"))
    dynamic, backward = chosen.random() < DYNAMIC_SHARE, chosen.random() < 0.15
    return Program(tuple(inputs), (), (), entry, dynamic, backward, num_states, holder, calls)


def _draw_outputs(draft: Draft) -> tuple[str, ...]:
    """What nothing reads, and others: states, arguments, values that views are returned of."""
    unread = [name for name in draft.values if name in draft.fresh]
    others = [name for name in draft.values if name not in unread]
    unread += draft.random.sample(others, min(len(others), draft.random.randint(0, 2)))
    draft.random.shuffle(unread)
    return tuple(unread or list(draft.values)[-1:])


def _eager_takes(program: Program) -> bool:
    try:
        run_program(program, Subject.of(program))
    except Exception:  # of torch, on purpose
        return False
    return True


def _without_overlap(program: Program) -> Program:
    """Each argument from the base of its place, so that eager takes any write."""
    num_bases = len(program.inputs) - program.num_states
    own = tuple(f"b{place % num_bases}[3:]" for place in range(len(program.calls[0])))
    return replace(program, calls=(own,) * len(program.calls))
