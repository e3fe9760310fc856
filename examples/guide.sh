#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: guide.sh [-s] [-n RANKS] DATA DIRECTORY [FLAG...]
#
# Train a small GPT-2 on RANKS processes (2 to 8; 4), two of them tensor-parallel and,
# from 4 on, in two stages of a pipeline, for 200 steps with validation.  Then resume
# from the mount of its checkpoint of step 100 on up to four other topologies, and from
# its weights alone (the view _hf), with new optimizer states.  What comes out in
# DIRECTORY: guide.csv with all losses, and guide.png with their curves.
#
# DATA is the prefix of an indexed dataset, or any other --data of uctrain(1).  FLAGs are
# given to each run of uctrain.  -s makes a short form of it: 20 steps, two topologies.
set -euo pipefail

usage()
{
	sed -n '4s/^# //p' "$0" >&2
	exit 2
}

ranks=4
steps=200
most=4
while getopts sn: option; do
	case $option in
	s)
		steps=20
		most=2
		;;
	n) ranks=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || usage
case $ranks in [2-8]) ;; *) usage ;; esac
data=$1
out=$2
shift 2
half=$((steps / 2))
mkdir -p "$out"
out=$(cd "$out" && pwd)
for name in trained logs mnt weights; do
	[ ! -e "$out/$name" ] || {
		printf 'guide: %s is there already\n' "$out/$name" >&2
		exit 1
	}
done
mkdir "$out/mnt" "$out/weights"

clean_up()
{
	local mount
	for mount in "$out/weights" "$out/mnt"; do
		fusermount3 -uz "$mount" 2>/dev/null || :
		rmdir "$mount" 2>/dev/null || :
	done
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# The batch is a multiple of all numbers of data-parallel ranks here.
flags=(--n_layer 4 --n_head 4 --n_embd 64 --vocab_size 256 --n_positions 32 --seq_length 32
	--train_batch_size 24 --lr 1e-3
	--data "$data" --eval_interval $((steps / 20)) --log_dir "$out/logs" "$@")

# name TP PP DP
name()
{
	printf 'gpt2_tp%s_pp%s_dp%s_sp1' "$1" "$2" "$3"
}

# train NAME TP PP DP FLAG...: the highest stage of ZeRO that goes with the topology
train()
{
	local run=$1 tp=$2 pp=$3 dp=$4 stage=3
	shift 4
	[ "$tp" = 1 ] || stage=2
	[ "$pp" = 1 ] || stage=1
	printf '$ mpirun -n %d uctrain --tensor_model_parallel_size %d --pipeline_model_parallel_size %d --zero_stage %d ...\n' \
		$((tp * pp * dp)) "$tp" "$pp" $stage
	mpirun --oversubscribe -n $((tp * pp * dp)) uctrain "${flags[@]}" --run_name "$run" \
		--tensor_model_parallel_size "$tp" --pipeline_model_parallel_size "$pp" \
		--zero_stage $stage "$@" >"$out/$run.log" 2>&1 || {
		grep '^uctrain: ' "$out/$run.log" >&2 || tail -n 5 "$out/$run.log" >&2
		exit 1
	}
	grep '^step ' "$out/$run.log" | tail -n 1
}

# apart RUN: the largest difference of its losses from those of the first run
apart()
{
	awk -F, '
	FNR == 1 { next }
	FNR == NR { loss[$1] = $2; next }
	{
		d = $2 - loss[$1]
		d = d < 0 ? -d : d
		max = d > max ? d : max
		n++
	}
	END {
		printf "%d steps, at most %.2g apart\n", n, max
		exit !n || max > 1e-5
	}' "$out/logs/$base/metrics.csv" "$out/logs/$1/metrics.csv"
}

# --- the first run ------------------------------------------------------------------

if [ "$ranks" -ge 4 ]; then
	topology=(2 2 $((ranks / 4)))
else
	topology=(2 1 1)
fi
base=$(name "${topology[@]}")
train "$base" "${topology[@]}" --steps "$steps" --checkpoint_dir "$out/trained" \
	--checkpoint_interval "$half"

# --- the same run on other topologies ------------------------------------------------

others=()
for other in "1 1 1" "1 1 2" "1 2 1" "1 1 3" "2 1 2" "1 2 2" "4 1 1" "1 1 4" "2 1 3" "1 2 4" "4 2 1" "2 1 4" "1 1 8"; do
	read -r tp pp dp <<<"$other"
	[ $((tp * pp * dp)) -gt "$ranks" ] || [ "$other" = "${topology[*]}" ] ||
		others+=("$other")
done
[ "${#others[@]}" -le "$most" ] || others=("${others[@]: -$most}")

printf '$ ucfs %s %s\n' "$out/trained" "$out/mnt"
ucfs "$out/trained" "$out/mnt"
from=(--resume="$out/mnt" --universal_checkpoint --checkpoint_tag "global_step${half}_universal")
tables=()
for other in "${others[@]}"; do
	read -r tp pp dp <<<"$other"
	run=$(name "$tp" "$pp" "$dp")
	train "$run" "$tp" "$pp" "$dp" --steps "$steps" "${from[@]}"
	apart "$run"
	tables+=("$out/logs/$run")
done

# --- from the weights alone ------------------------------------------------------------

# They have no step: the run counts from 0, and its curve is moved to where the weights
# are from.
printf '$ ucfs %s %s\n' "$out/mnt/global_step${half}_hf" "$out/weights"
ucfs "$out/mnt/global_step${half}_hf" "$out/weights"
train weights_only "${topology[@]}" --steps "$half" --resume="$out/weights" \
	--universal_checkpoint --ignore_missing_optim
moved=$out/weights_only.csv
awk -F, -v OFS=, -v by="$half" '
FNR == 1 { print "step", "loss", "valid_loss"; next }
{ print $1 + by, $2, $8 }' "$out/logs/weights_only/metrics.csv" >"$moved"
# The server of weights may still have files of mnt open while it ends: -z unmounts then, too.
fusermount3 -u "$out/weights"
fusermount3 -uz "$out/mnt"

# --- the curves ----------------------------------------------------------------------

awk -F, -v OFS=, '
FNR == 1 {
	n = split(FILENAME, path, "/")
	run = path[n] == "metrics.csv" ? path[n - 1] : "weights_only"
	column = path[n] == "metrics.csv" ? 8 : 3
	if (NR == 1)
		print "run", "step", "loss", "valid_loss"
	next
}
{ print run, $1, $2, $column }' "$out/logs/$base/metrics.csv" \
	"${tables[@]/%//metrics.csv}" "$moved" >"$out/guide.csv"
printf '%s\n' "$out/guide.csv"
if command -v gnuplot >/dev/null; then
	ucplot --png -o "$out/guide" "$out/logs/$base" "${tables[@]}" "$moved"
	printf '%s\n' "$out/guide.png"
else
	printf 'no gnuplot here: %s is not drawn\n' "$out/guide.png"
fi
