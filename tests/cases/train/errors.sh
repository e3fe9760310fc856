#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs that cannot train, save or resume end with one message and lose nothing.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

flags=("${tiny[@]}" --train_batch_size 8 --train_micro_batch_size_per_gpu 4)

# refused "what" PATTERN RANKS FLAG...: must fail with a message that matches PATTERN.
refused() {
	local what=$1 pattern=$2 ranks=$3
	shift 3
	if try_train "$ranks" refused "$@"; then
		fail "$what: was accepted"
	fi
	grep -q -e "$pattern" "$tmp/refused.log" ||
		fail "$what: $(tail -n 5 "$tmp/refused.log")"
}

refused "a batch that does not divide" "train_batch_size" 3 "${flags[@]}" --steps 1
refused "heads that do not divide the width" "n_head" 1 "${flags[@]}" --n_head 3 --steps 1
refused "an unknown dtype" "dtype" 1 "${flags[@]}" --dtype fp8 --steps 1
refused "no such configuration" "nowhere.json" 1 "${flags[@]}" --deepspeed_config "$tmp/nowhere.json" --steps 1
echo '{ "train_batch_size": 8,, }' >"$tmp/bad.json"
refused "a configuration that is no JSON" "bad.json" 1 "${flags[@]}" --deepspeed_config "$tmp/bad.json" --steps 1
refused "no checkpoint to resume from" "latest" 1 "${flags[@]}" --resume --checkpoint_dir "$tmp/none" --steps 1

uctrain --bogus 2>"$tmp/bogus"
check "a wrong command line: status 2" test $? = 2
check "in one line" test "$(wc -l <"$tmp/bogus")" = 1
check "--help fits a screen of 24 lines, with the prompt" \
	awk 'length > 80 { wide = 1 } END { exit wide || NR < 10 || NR > 23 }' <(uctrain --help)

# Tokens exceed the vocabulary.
head -c 4096 /dev/zero | tr '\0' '\377' >"$tmp/high.u16"
seq 400 >"$tmp/short.txt"
refused "tokens out of range" "high.u16" 2 "${flags[@]}" --data "$tmp/high.u16" --steps 1

refused "nothing to validate on" "eval_interval" 1 "${flags[@]}" --steps 1 \
	--data "$tmp/short.txt" --eval_interval 1

# A known key takes effect, an unknown one is reported.
echo '{ "train_batch_size": 8, "zero_optimization": { "stage": 2 }, "stage_fright": 1 }' >"$tmp/odd.json"
train 2 odd "${tiny[@]}" --train_micro_batch_size_per_gpu 4 --deepspeed_config "$tmp/odd.json" --steps 1
check "an unknown key is named" grep -q stage_fright "$tmp/odd.log"

# Save two checkpoints, which must survive.
run=$tmp/run
train 2 good "${flags[@]}" --steps 2 --checkpoint_dir "$run" --checkpoint_interval 1
check "both are there" test -d "$run/global_step1" -a -d "$run/global_step2"

# The loss diverges.
refused "a loss that is no number" "stopped; nothing was saved after step 2" 2 "${flags[@]}" --steps 50 --resume \
	--no_load_optimizer_states --checkpoint_dir "$run" --lr 1000 --gradient_clipping 0 --checkpoint_interval 50
check "and is not saved" test "$(cat "$run/latest")" = global_step2
check "the last one is whole" ucckpt check --data "$run/global_step2"

# The checkpoint is of another model.
refused "another model" "it lacks transformer.h.2.ln_1.weight," 2 "${flags[@]}" --n_layer 3 --steps 3 --resume --checkpoint_dir "$run"

# Trees of models other than GPT-2: parameters that they lack, and parameters that only they have.
ucckpt convert "$run/global_step2" "$tmp/tree" >/dev/null || fail "convert"
while IFS='|' read -r what pattern change; do
	cp -r "$tmp/tree" "$tmp/other"
	(cd "$tmp/other/zero" && eval "$change") || fail "$what: $change"
	refused "$what" "another model: it $pattern, which this model, a GPT-2, " 1 "${flags[@]}" \
		--steps 3 --resume="$tmp/other" --universal_checkpoint
	rm -r "$tmp/other"
done <<'END'
an untied head|has lm_head.weight|cp -r transformer.wte.weight/. lm_head.weight
RMSNorm|lacks transformer.h.0.ln_1.bias|rm -r transformer.h.*.ln_?.bias transformer.ln_f.bias
no biases|lacks transformer.h.0.ln_1.bias|rm -r *.bias
no positions|lacks transformer.wpe.weight|rm -r transformer.wpe.weight
END
ucckpt convert "$good/autotp2_llama_z1_dp1/global_step4" "$tmp/llama" >/dev/null || fail "convert"
refused "Llama" "another model: it lacks transformer.wte.weight," 1 "${flags[@]}" --steps 5 \
	--resume="$tmp/llama" --universal_checkpoint
rm -r "$tmp/llama"

# The disk is full: the ranks' files are limited to 64 KiB, but not mpirun's; the ranks use no
# files of shared memory.
for how in "" --async_save; do
	rank=(bash -c 'ulimit -f 64; exec uctrain "$@"' uctrain ${how:+"$how"})
	if OMPI_MCA_btl=self,tcp try_train 2 full "${flags[@]}" --steps 30 --resume \
		--checkpoint_dir "$run" --checkpoint_interval 1; then
		fail "a save on a full disk succeeded"
	fi
	check "the error says so" grep -q "step 3 was not saved.*File too large" "$tmp/full.log"
	check "the one before is still the newest" test "$(cat "$run/latest")" = global_step2
	check "and whole" ucckpt check --data "$run/global_step2"
	check "nothing is left of the failed one" test ! -e "$run/global_step3"
done
rank=(uctrain)

# A rank dies; the others end with a message.
timeout 60 mpirun -n 2 uctrain "${flags[@]}" --steps 100000 --resume --checkpoint_dir "$run" \
	--run_name killed --log_dir "$tmp/logs" >"$tmp/killed.log" 2>&1 &
mpi=$!
for _ in $(seq 100); do
	[ -s "$tmp/logs/killed/"*.csv ] 2>/dev/null && break
	sleep 0.1
done
victim=$(pgrep -f -- "--run_name killed" | while read -r p; do
	[ "$(cat "/proc/$p/comm" 2>/dev/null)" = uctrain ] && echo "$p"
done | tail -n 1)
kill -9 "${victim:?}"
if wait "$mpi"; then
	fail "a run whose rank died succeeded"
fi
check "the message names the rank" grep -q -i rank "$tmp/killed.log"
check "the last checkpoint is whole" ucckpt check --data "$run/global_step2"

# After a stop signal the step is finished and saved.
for how in "" --async_save; do
	mpirun -n 2 uctrain "${flags[@]}" --steps 100000 --checkpoint_dir "$tmp/asked$how" \
		--checkpoint_interval 10 --keep_last 2 ${how:+"$how"} \
		--run_name "asked$how" --log_dir "$tmp/logs" >"$tmp/asked.log" 2>&1 &
	mpi=$!
	for _ in $(seq 100); do
		[ -s "$tmp/logs/asked$how/"*.csv ] 2>/dev/null && break
		sleep 0.1
	done
	kill -USR1 "$mpi"
	wait "$mpi" || fail "a run that was asked to stop failed: $(tail -n 3 "$tmp/asked.log")"
	last=$(tail -n 1 "$tmp/logs/asked$how/metrics.csv" | cut -d, -f1)
	check "what was done is saved" test "$(cat "$tmp/asked$how/latest")" = "global_step$last"
	check "and whole" ucckpt check --data "$tmp/asked$how/global_step$last"
done
finish
