#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Figures in a step's row: FLOP/s by the formula of uctrain(1), as a part of the peak, device
# memory, times of phases.
pictures=yes
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# column NAME RUN: print its values, one per step, without empty ones.
column() {
	awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i; next }
		$at != "" { print $at }' "$tmp/logs/$2/metrics.csv"
}

# every NAME RUN CONDITION-OF-x: check that it holds in all three steps.
every() {
	column "$1" "$2" | awk "{ x = \$1; n += ($3) } END { exit !(n == 3 && NR == 3) }"
}

train 2 cpu "${tiny[@]}" --train_batch_size 4 --steps 3 --peak_tflops 1e-3 \
	--checkpoint_dir "$tmp/run" --checkpoint_interval 1 --recompute

# On two ranks: 6 per parameter and 12 * 2 blocks * width 32 * 32 positions.
parameters=$((256 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32))
each=$((6 * parameters + 12 * 2 * 32 * 32))
check "FLOP/s" test "$(paste <(column tokens_per_second cpu) <(column tflops cpu) |
	awk -v each="$each" '{ want = $1 * each / 2 / 1e12; n += $2 > want * 0.999 && $2 < want * 1.001 }
		END { print n }')" = 3
check "the part of the peak" test "$(paste <(column tflops cpu) <(column mfu cpu) |
	awk '{ want = $1 / 1e-3; n += $2 > want * 0.999 && $2 < want * 1.001 } END { print n }')" = 3
check "and in the log" test "$(grep -c ' % MFU$' "$tmp/cpu.log")" = 3
check "the time left" test "$(grep -c '^step [123]/3  [0-9]*:[0-5][0-9] left  loss ' "$tmp/cpu.log")" = 3
check "and each checkpoint" test "$(grep "^saved $tmp/run/" "$tmp/cpu.log" | tr '\n' ' ')" = \
	"saved $tmp/run/global_step1 saved $tmp/run/global_step2 saved $tmp/run/global_step3 "
# The losses are drawn if there are enough steps and gnuplot.
check "no picture of three steps" test ! -e "$tmp/logs/cpu/loss.png"
if command -v gnuplot >/dev/null; then
	train 1 drawn "${tiny[@]}" --train_batch_size 1 --steps 20
	check "a picture" test "$(head -c 4 "$tmp/logs/drawn/loss.png" | tail -c 3)" = PNG
	check "without words" test "$(grep -c gnuplot "$tmp/drawn.log")" = 0
fi

check "no device memory" test -z "$(column device_memory cpu)"
for phase in data pass update; do
	check "$phase" every "${phase}_seconds" cpu "x > 0 && x < 60"
done
check "saves, before the next step" test "$(column save_seconds cpu | awk '{ printf("%d", ($1 > 0)) }')" = 011

train 1 unknown "${tiny[@]}" --train_batch_size 1 --steps 3
check "no peak is known of a CPU" test -z "$(column mfu unknown)"
check "figures are plotted" ucplot --csv --output "$tmp/plot" --tag speed/tflops "$tmp/logs/cpu" >"$tmp/words" 2>&1

# A terminal line is redrawn, and stays when a checkpoint is reported.
if command -v script >/dev/null; then
	TERM=dumb script -qec "uctrain ${tiny[*]} --train_batch_size 1 --steps 3 --log_dir '$tmp/logs' \
		--run_name bar --checkpoint_dir '$tmp/bar' --checkpoint_interval 2" "$tmp/typescript" </dev/null >/dev/null 2>&1
	check "a bar" test "$(tr '\r' '\n' <"$tmp/typescript" |
		grep -c -E '^ *(33|66|100)% \[=+ *\] step [123]/3  [0-9]+:[0-9]+ left  loss ')" = 3
	check "checkpoints have lines" test "$(tr -d '\r' <"$tmp/typescript" | grep -c "^saved $tmp/bar/global_step[23]$")" = 2
fi

# Emulated GPUs count memory, and fail for ranges that stay open.
rank=("$top_builddir/tests/programs/uctrain_emulated")
if [ -x "${rank[0]}" ]; then
	train 1 cuda "${tiny[@]}" --device cuda --dtype bf16 --train_batch_size 1 --steps 3 --peak_tflops 1 \
		--eval_interval 2 --checkpoint_dir "$tmp/cuda"
	check "device memory" every device_memory cuda "x > 14 * $parameters"
	check "in the log" test "$(grep -c ' MiB on the device' "$tmp/cuda.log")" = 3
fi

finish
