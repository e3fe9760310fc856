#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The recipes in examples work unchanged: run the commands at their beginning.  The last but
# one resumes on another number of ranks, and its losses must equal those of the first
# command that trains.
#
#     UCFS_PYTHON=/venv/bin/python recipes.sh [NAME...]
#
# Needs a Python with deepspeed, and what each recipe imports (deepspeed 0.19.8, accelerate
# 1.15, transformers 5.24, trl 1.16, peft 0.21 and lightning 2.6 were used), and for
# megatron_deepspeed UCFS_MEGATRON (lib.sh); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python accelerate deepspeed
require_ucfs
make_scratch unused
examples=$(realpath "$here/../../examples")
PATH=$(dirname "$UCFS_PYTHON"):$PATH
export PYTHONDONTWRITEBYTECODE=1 TMPDIR=$scratch
unset DS_ACCELERATOR # let DeepSpeed detect it
on_cpu=$here/on_cpu${PYTHONPATH:+:$PYTHONPATH}

# same_losses WHOLE RESUMED: check that RESUMED has the losses of steps 5 to 8, in lines "step N
# loss LOSS".
same_losses() {
	awk '$1 != "step" { next }
	NR == FNR { whole[$2] = $4; next }
	{ steps = steps " " $2; d = $4 - whole[$2] }
	d * d > 1e-8 { print "step " $2 ": " $4 ", not " whole[$2]; wrong = 1 }
	END { exit wrong || steps != " 5 6 7 8" }' "$@"
}

follow() {
	local command n=0
	mkdir "$scratch/$1" && cd "$scratch/$1" && cp "$examples/$1."* . || exit
	while read -r command; do
		n=$((n + 1))
		eval "$command" >"said$n" 2>"complaints$n" </dev/null || {
			fail "$1: $command: $(tail -n 5 "complaints$n")"
			return 1
		}
	done < <(sed -n 's/^#\{0,1\} *\$ //p' "$1."*)
	same_losses "$(grep -l '^step ' said? | head -n 1)" said$((n - 1)) && return
	fail "$1: other losses, or other steps"
	return 1
}

# The recipe expects Megatron-DeepSpeed in $HOME, here with the flags that it needs without a GPU,
# and its data.
prepare_megatron() {
	local HOME=$scratch/home
	mkdir -p "$HOME/data"
	copy_megatron "$HOME/Megatron-DeepSpeed"
	sed -i '1i import os, sys; os.environ["LOCAL_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]
		1i sys.argv += """--distributed-backend gloo --cpu-optimizer \
		--cpu_torch_adam --no-bias-gelu-fusion --no-bias-dropout-fusion --num-workers 0 \
		--no-masked-softmax-fusion --no-gradient-accumulation-fusion \
		--make-vocab-size-divisible-by 1""".split()' \
		"$HOME/Megatron-DeepSpeed/pretrain_gpt.py"
	cp "$HOME/Megatron-DeepSpeed/"{vocab.json,merges.txt} "$HOME/data"
	for suffix in bin idx; do
		cp "$good/megatron/data/tiny_text_document.$suffix" "$HOME/data/text_document.$suffix"
	done
}

[ $# -gt 0 ] || set -- accelerate_state deepspeed_engine hf_trainer latest_universal \
	lightning_deepspeed megatron_deepspeed trl_lora
for recipe; do
	if [ "$recipe" = megatron_deepspeed ]; then
		(require_megatron) || continue
		prepare_megatron
		HOME=$scratch/home PYTHONPATH=$on_cpu follow "$recipe" && echo "ok: $recipe"
		continue
	fi
	imports=$(sed -n 's/^import //p' "$examples/$recipe.py" | paste -sd,)
	"$UCFS_PYTHON" -c "import $imports" 2>/dev/null || {
		echo "not run: $recipe: $UCFS_PYTHON cannot import all of $imports"
		continue
	}
	if [ "$recipe" = lightning_deepspeed ]; then # Lightning refuses DeepSpeed without a GPU
		PYTHONPATH=$on_cpu follow "$recipe" && echo "ok: $recipe"
	else
		follow "$recipe" && echo "ok: $recipe"
	fi
done
[ "$failures" -eq 0 ]
