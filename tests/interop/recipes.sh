#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The recipes examples/*.py work as they stand: this runs the commands in their docstrings,
# of which the last but one resumes on another number of ranks and must have the losses of
# the first.
#
#     UCFS_PYTHON=/venv/bin/python recipes.sh [NAME...]
#
# Needs a Python with deepspeed, and what each recipe imports (deepspeed 0.19.8, accelerate
# 1.15, transformers 5.24, trl 1.16, peft 0.21 and lightning 2.6 were used); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python accelerate deepspeed
require_ucfs
make_scratch unused
examples=$(realpath "$here/../../examples")
PATH=$(dirname "$UCFS_PYTHON"):$PATH
export PYTHONPATH=$here/on_cpu${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 TMPDIR=$scratch

# same_losses WHOLE RESUMED: of lines "step N loss LOSS" RESUMED has those of steps 5 to 8.
same_losses() {
	awk '$1 != "step" { next }
	NR == FNR { whole[$2] = $4; next }
	{ steps = steps " " $2; d = $4 - whole[$2] }
	d * d > 1e-8 { print "step " $2 ": " $4 ", not " whole[$2]; wrong = 1 }
	END { exit wrong || steps != " 5 6 7 8" }' "$@"
}

follow() {
	local command n=0
	mkdir "$scratch/$1" && cd "$scratch/$1" && cp "$examples/$1.py" . || exit
	while read -r command; do
		n=$((n + 1))
		eval "$command" >"said$n" 2>"complaints$n" </dev/null || {
			fail "$1: $command: $(tail -n 5 "complaints$n")"
			return 1
		}
	done < <(sed -n 's/^    \$ //p' "$1.py")
	same_losses said1 said$((n - 1)) && return
	fail "$1: other losses, or other steps"
	return 1
}

[ $# -gt 0 ] || set -- accelerate_state deepspeed_engine hf_trainer latest_universal \
	lightning_deepspeed trl_lora
for recipe; do
	imports=$(sed -n 's/^import //p' "$examples/$recipe.py" | paste -sd,)
	"$UCFS_PYTHON" -c "import $imports" 2>/dev/null || {
		echo "not run: $recipe: $UCFS_PYTHON cannot import all of $imports"
		continue
	}
	follow "$recipe" && echo "ok: $recipe"
done
[ "$failures" -eq 0 ]
