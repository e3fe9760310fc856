# SPDX-License-Identifier: Apache-2.0
"""Small models divided among tensor-parallel ranks and pipeline stages.

A Grid says which rank is where, and is the `mpu` that DeepSpeed asks.  Each
parameter of a divided model knows which elements of the whole one it holds:
`positions` has them, `whole_shape` the shape.  Tensors merged by these are
correct whatever a checkpoint says about how the model was divided; uc_info()
says it in DeepSpeed's terms.
"""

import itertools

import torch
import deepspeed

import resume

VOCAB = 21
LLAMA_VOCAB = 7
WIDTH = 8
INNER = 12
LAYERS = 1
BLOCKS = 4  # pipeline layers: the converter divides them by the number of stages


def parts_of(odd):
    """Return rows of the fused projection's three parts, each divided separately. DeepSpeed's
    loader can only divide evenly."""
    return (8, 3, 3) if odd else (8, 4, 4)


class Grid:
    """Orders `tp` tensor-parallel and `pp` pipeline ranks like DeepSpeed's topologies: tensor
    ranks are neighbours, then come data ranks for Megatron, pipeline stages last."""

    def __init__(self, tp=1, pp=1, dp=1):
        self.tp, self.pp, self.dp = tp, pp, dp
        rank = torch.distributed.get_rank()
        self.tensor, self.data = rank % tp, rank // tp % dp
        self.stage = rank // (tp * dp)
        for p, d in itertools.product(range(pp), range(dp)):
            self._group("tensor_group", [self._rank(p, d, t)
                                         for t in range(tp)])
        for p, t in itertools.product(range(pp), range(tp)):
            self._group("data_group", [self._rank(p, d, t)
                                       for d in range(dp)])

    def _rank(self, stage, data, tensor):
        return (stage * self.dp + data) * self.tp + tensor

    def _group(self, name, ranks):
        group = deepspeed.comm.new_group(ranks)
        if torch.distributed.get_rank() in ranks:
            setattr(self, name, group)
            setattr(self, name + "_ranks", ranks)

    # Methods that DeepSpeed calls on Megatron's mpu.

    def get_model_parallel_rank(self):
        return self.tensor

    def get_model_parallel_world_size(self):
        return self.tp

    def get_model_parallel_group(self):
        return self.tensor_group

    def get_data_parallel_rank(self):
        return self.data

    def get_data_parallel_world_size(self):
        return self.dp

    def get_data_parallel_group(self):
        return self.data_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group


# Activations that a layer's ranks exchange.


class ToAll(torch.autograd.Function):
    """The value is the same on all ranks; backward sums the gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(grad, group=ctx.group)
        return grad, None


class AddUp(torch.autograd.Function):
    """Sums over all ranks, on all of them."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


# Rows or columns of a whole tensor on rank r of n.


def all_of(whole, r, n):
    return whole


def rows(whole, r, n):
    return whole.chunk(n, 0)[r]


def columns(whole, r, n):
    return whole.chunk(n, 1)[r]


def rows_of_halves(whole, r, n):
    return torch.cat([half.chunk(n, 0)[r] for half in whole.chunk(2, 0)])


def shares(rows, n):
    """Return sizes as equal as possible, larger ones first."""
    return [rows // n + (r < rows % n) for r in range(n)]


def rows_of_parts(parts):
    def cut(whole, r, n):
        return torch.cat([part.split(shares(len(part), n))[r]
                          for part in whole.split(parts)])
    return cut


def held(whole, cut, grid):
    """Make the parameter that a rank holds of `whole`."""
    index = torch.arange(whole.numel()).view(whole.shape)
    n, r = grid.tp, grid.tensor
    p = torch.nn.Parameter(cut(whole, r, n).clone())
    p.positions, p.whole_shape = cut(index, r, n).flatten(), whole.shape
    if cut is not all_of:
        p.tensor_model_parallel = p.model_parallel = True
    return p


class Block(torch.nn.Module):
    def __init__(self, grid, seed, odd=False):
        super().__init__()
        parts = parts_of(odd)
        chance = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(shape, generator=chance) * 0.3

        self.group = grid.tensor_group
        self.norm_weight = held(1 + random(WIDTH), all_of, grid)
        self.norm_bias = held(random(WIDTH), all_of, grid)
        self.fused = held(random(sum(parts), WIDTH),
                          rows_of_parts(parts), grid)
        self.up = held(random(2 * INNER, WIDTH), rows_of_halves, grid)
        self.down = held(random(WIDTH, INNER), columns, grid)
        self.down_bias = held(random(WIDTH), all_of, grid)
        if odd:
            # Each rank trains its own; the checkpoint keeps their mean.
            self.mean = held(random(WIDTH) + grid.tensor / 8, all_of, grid)
            self.mean.is_mean = True

    def forward(self, x):
        y = torch.nn.functional.layer_norm(x, (WIDTH,), self.norm_weight,
                                           self.norm_bias)
        y = ToAll.apply(y, self.group)
        fused = torch.tanh(y @ self.fused.t()).sum(-1, keepdim=True)
        if hasattr(self, "mean"):
            fused = fused + y * self.mean
        a, b = (y @ self.up.t()).chunk(2, -1)
        down = torch.nn.functional.silu(a) * b @ self.down.t()
        return x + AddUp.apply(down + fused / 8, self.group) + self.down_bias


def padded_vocab(tp):
    """Return the padding for another number of ranks."""
    return -(-VOCAB // (3 * tp)) * 3 * tp


def vocab_rows(grid):
    """Return the rows of the padded vocabulary on a rank."""
    return torch.arange(padded_vocab(grid.tp)).chunk(grid.tp)[grid.tensor]


class Embedding(torch.nn.Module):
    """Embeds tokens.  With `length` also positions, which the last stage of a pipeline has
    without using them, as in Megatron."""

    def __init__(self, grid, seed, length=0):
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        whole = torch.zeros(padded_vocab(grid.tp), WIDTH)
        whole[:VOCAB] = torch.randn(VOCAB, WIDTH, generator=chance)
        self.grid, self.first = grid, vocab_rows(grid)[0].item()
        self.words = held(whole, rows, grid)
        self.positions = torch.nn.Parameter(
            torch.randn(length, WIDTH, generator=chance)) if length else None

    def forward(self, tokens):
        mine = tokens - self.first
        there = (mine >= 0) & (mine < len(self.words))
        x = self.words[mine.clamp(0, len(self.words) - 1)]
        x = AddUp.apply(x * there.unsqueeze(-1), self.grid.tensor_group)
        return x if self.positions is None else x + self.positions

    def logits(self, x):
        return ToAll.apply(x, self.grid.tensor_group) @ self.words.t()


def loss_of(grid, logits, targets):
    """Return the squared distance to the true words, over all ranks' rows."""
    mine = vocab_rows(grid)
    error = logits.float() - (targets.unsqueeze(-1) == mine).float()
    total = (error * (mine < VOCAB)).square().sum() / targets.numel()
    return AddUp.apply(total, grid.tensor_group)


class TensorModel(torch.nn.Module):
    """Divides a transformer's layers like Megatron, with tied embeddings.  An odd model also has
    parameters that can be saved, but not loaded on other ranks: uneven parts, and a vector that
    each rank trains separately."""

    def __init__(self, grid, odd=False):
        super().__init__()
        self.grid = grid
        self.embedding = Embedding(grid, 1)
        self.layers = torch.nn.ModuleList(
            Block(grid, 2 + i, odd) for i in range(LAYERS))

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return loss_of(self.grid, self.embedding.logits(x), targets)


def pipeline(grid, length=0):
    """Has the same layers as a pipeline, with the embedding at both ends."""
    axes = deepspeed.runtime.pipe.topology.ProcessTopology(
        axes=["pipe", "data", "model"], dims=[grid.pp, grid.dp, grid.tp])

    def embedding(**more):
        return deepspeed.pipe.TiedLayerSpec(
            "ends", Embedding, grid, 1, length, tied_weight_attr="words", **more)

    blocks = [deepspeed.pipe.LayerSpec(Block, grid, 2 + i)
              for i in range(BLOCKS)]
    return deepspeed.pipe.PipelineModule(
        layers=[embedding(), *blocks, embedding(forward_fn=Embedding.logits)],
        topology=axes, partition_method="uniform",
        loss_fn=lambda logits, targets: loss_of(grid, logits, targets))


def uc_info(grid, odd=False, pipe=False, positions=False):
    """Return universal_checkpoint_info of these models."""
    block = r"\d+\." if pipe else r"layers\.\d+\."
    words = "tied_modules.ends.words" if pipe else "embedding.words"
    info = {
        "universal_checkpoint_version": 0.4,
        "original_vocab_size": VOCAB,
        "padded_vocab_size": padded_vocab(grid.tp),
        "vocabulary_parameter_patterns": [words],
        "tp_replicated_parameter_patterns": [block + "norm_weight",
                                             block + "norm_bias",
                                             block + "down_bias"],
        "parameter_with_row_parallelism_patterns": [block + "down$"],
        "parameter_with_2_sub_params_cat_dim_0": [block + "up"],
        "parameter_with_sub_params": [
            {"patterns": [block + "fused"], "shape": (parts_of(odd), WIDTH),
             "partition_dim": 0}],
        "sub_param_shard_widths": {
            block + "fused": [shares(n, grid.tp)
                              for n in parts_of(odd)]},
    }
    if odd:
        info["parameter_to_average_patterns"] = [block + "mean"]
    if pipe:
        info["pipeline_replicated_parameter_patterns"] = [words]
    if positions:  # Megatron's patterns name them, though no stage shares them
        info["pipeline_replicated_parameter_patterns"] += [
            "tied_modules.ends.positions"]
    return info


# AutoTP divides a model by itself.


def llama():
    import transformers

    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=LLAMA_VOCAB, hidden_size=8, intermediate_size=6,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=8))


def autotp_positions(tp):
    """Return the elements that AutoTP assigns to this rank, found with a model whose elements are
    their own positions."""
    model = llama()
    for p in model.parameters():
        p.data = torch.arange(p.numel()).float().view(p.shape)
    shapes = {n: p.shape for n, p in model.named_parameters()}
    engine = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1,
        "tensor_parallel": {"autotp_size": tp}})[0]
    return {n: (p.detach().long().flatten(), shapes[n])
            for n, p in engine.module.named_parameters()}


def set_positions(engine, positions):
    for name, p in engine.module.named_parameters():
        p.positions, p.whole_shape = positions[name]


# The state of all ranks, merged.


def own_parts(engine, grid, stage):
    """Return this rank's parameters and flat buffers, so that another rank can read them."""
    names = {p: n for n, p in engine.module.named_parameters()}
    places = {}
    for p, name in names.items():
        shape = getattr(p, "ds_shape", p.shape)
        places[name] = {"shape": tuple(shape), "numel": shape.numel(),
                        "positions": getattr(p, "positions", None),
                        "whole": tuple(getattr(p, "whole_shape", shape)),
                        "mean": hasattr(p, "is_mean")}
    parts = [([names[p] for p in params], buffers, numbers)
             for params, buffers, numbers in resume.local_parts(engine, stage)]
    paddings = getattr(engine.optimizer, "round_robin_bit16_padding", None) \
        or [[0] * len(params) for params, _, _ in parts]
    return {"at": (grid.stage, grid.tensor, grid.data), "places": places,
            "parts": parts, "paddings": paddings,
            "whole": whole_momenta(engine, names, parts)}


def whole_momenta(engine, names, parts):
    """Muon keeps the momentum of whole matrices in ZeRO 1 and 2, unless it is offloaded: here
    those of this rank's partition, end to end."""
    out = {}
    partitions = getattr(engine.optimizer, "params_in_partition", [])
    for params, (_, buffers, _) in zip(partitions, parts):
        whole = [p for p in params if getattr(p, "use_muon", False)]
        if whole and not engine.zero_cpu_offload():
            momentum = buffers.pop("momentum_buffer")
            for p, piece in zip(whole, momentum.split(
                    [p.numel() for p in whole])):
                out[names[p], "momentum_buffer"] = piece
    return out


def slices_of(ranks, stage):
    """Map (parameter, state) to the flat slice of one tensor-parallel rank, joined from the parts
    of its data-parallel ranks, in order."""
    cut = resume.cut_each if stage == 3 else resume.cut_concatenated
    out = {}
    for g, (names, buffers, numbers) in enumerate(ranks[0]["parts"]):
        sizes = [ranks[0]["places"][n]["numel"] for n in names]
        slots = [sum(pair) for pair in zip(sizes, ranks[0]["paddings"][g])]
        for state in buffers:
            pieces = cut(slots, [r["parts"][g][1][state] for r in ranks])
            out.update(((n, state), piece[:size])
                       for n, size, piece in zip(names, sizes, pieces))
    for rank in ranks:
        for key, whole in rank["whole"].items():
            if not torch.equal(out.setdefault(key, whole), whole):
                raise RuntimeError(f"ranks differ in {key}")
    return out


def place(slices, places):
    """Join a whole tensor from one slice of each tensor-parallel rank."""
    if places[0]["positions"] is None:
        return slices[0].view(places[0]["whole"])
    if places[0]["mean"]:
        return (sum(slices) / len(slices)).view(places[0]["whole"])
    whole = torch.full(places[0]["whole"], torch.nan, dtype=slices[0].dtype)
    for piece, where in zip(slices, places):
        whole.view(-1)[where["positions"]] = piece
    return whole


def whole_states(engine, grid, stage):
    """Return (parameter, state) -> tensor, and parameter -> other values of its group (step); on
    every rank."""
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, own_parts(engine, grid, stage))
    by_place = {}
    for rank in sorted(ranks, key=lambda r: r["at"]):
        by_place.setdefault(rank["at"][:2], []).append(rank)
    states, numbers = {}, {}
    for stage_at in range(grid.pp):
        peers = [by_place[stage_at, t] for t in range(grid.tp)]
        slices = [slices_of(data, stage) for data in peers]
        for name, state in slices[0]:
            places = [data[0]["places"][name] for data in peers]
            states.setdefault((name, state), place(
                [s[name, state] for s in slices], places).clone())
        for names, _, kept in peers[0][0]["parts"]:
            # Adafactor's RMS belongs to a partition, and is recomputed at each step.
            kept = {key: v for key, v in kept.items() if key != "RMS"}
            numbers.update((n, kept) for n in names)
    return states, numbers
