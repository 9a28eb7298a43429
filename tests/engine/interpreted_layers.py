"""Training kernels under Triton's interpreter, chosen before they are imported: run as a module."""

from __future__ import annotations

import sys

import torch

from hermes.engine.attention.packing import pack, pack_unshared
from hermes.engine.training import layer_plain
from tests.engine.layer_parts import states_and_gradient, texts


def stack() -> None:
    """Whole passes: head norms, biases, keys repeated and not, odd widths."""
    from hermes.engine.kernels import layer

    few = [text[:30] for text in texts()[:4]]
    (shared,) = pack(few, 10**5)
    for family, batch in (("llama", shared), ("qwen3", shared), ("qwen2", pack_unshared(few[:2]))):
        wanted = states_and_gradient(family, batch, layer_plain, repeated=True)
        found = states_and_gradient(family, batch, layer, repeated=True, kernels=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-4)


def half() -> None:
    """Each kernel in half precision, with inputs that are part of a wider matrix."""
    from hermes.engine.kernels import layer as fused

    generator = torch.Generator().manual_seed(0)
    x, delta, wide = (torch.randn(5, 40, generator=generator).bfloat16() for _ in range(3))
    weight = torch.randn(24, generator=generator).bfloat16()
    x, delta, grad = x[:, :24].contiguous(), delta[:, :24].contiguous(), wide[:, :24]
    pairs = (part.add_norm(x, delta, weight, 1e-5) for part in (fused, layer_plain))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)
    for residual in (None, delta):
        one, other = (part.norm_backward(grad, x, weight, 1e-5, residual) for part in (fused, layer_plain))
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)
    gate_up = torch.randn(5, 48, generator=generator).bfloat16()
    one, other = (part.silu_and_mul(gate_up) for part in (fused, layer_plain))
    torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)
    one, other = (part.silu_and_mul_backward(gate_up.clone(), grad) for part in (fused, layer_plain))
    torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)


def head() -> None:
    from hermes.engine.kernels.lm_head import softmax_stats

    logits = 5 * torch.randn(3, 9000, generator=torch.Generator().manual_seed(0))
    for given in (logits, logits.bfloat16()):
        wide = given.float()
        for exponentials in (None, torch.empty_like(given, dtype=torch.bfloat16)):
            top, total = softmax_stats(given, exponentials)
            torch.testing.assert_close(top, wide.amax(-1, keepdim=True))
            torch.testing.assert_close(top + total.log(), wide.logsumexp(-1, keepdim=True))
            if exponentials is not None:
                torch.testing.assert_close(exponentials, (wide - top).exp().bfloat16())


if __name__ == "__main__":
    {"stack": stack, "half": half, "head": head}[sys.argv[1]]()
