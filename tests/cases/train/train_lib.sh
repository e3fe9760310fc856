# SPDX-License-Identifier: Apache-2.0
# Shared by the cases of the trainer, on top of lib.sh.
#
#   train N NAME FLAG...   runs uctrain on N ranks as run NAME; its output is in
#                          $tmp/NAME.log, its figures are in $tmp/logs/NAME
#   train_later N NAME FLAG...   queues the same run for
#   train_all              which starts ranks once for all queued runs
#                          (uctrain_runs.c)
#   refused_later "what" PATTERN N FLAG...   train_all shows that this run on N ranks
#                          ends with one message that matches
#   losses NAME            "step loss" per line
#   apart A B FIRST        the largest difference of two runs' losses over the
#                          steps from FIRST that both have; "none" if there are
#                          no such steps
#   alike WHAT LIMIT A B   checks that losses, including those of validations, and
#                          norms of two runs differ by at most LIMIT.  (At a higher
#                          learning rate than these cases', a few batches have a row
#                          so steep that its gradient magnifies the last digits of
#                          weights a thousand times, also those in which
#                          data-parallel ranks differ.)
#   same_bits WHAT A B     checks that two runs have the same losses and norms
#   within LIMIT NUMBER    true for a number of at most LIMIT
#   long MANY FEW          sets $steps to MANY, or to FEW under sanitizers and on
#                          an emulated GPU
#   find_cuda              sets $cuda to the program that supports --device cuda:
#                          uctrain with a GPU, else one that emulates it
#
# With TRAIN_DEVICE=cuda all runs of a case use that program.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

# shellcheck source=tests/cases/mpi.sh
. "$(dirname "${BASH_SOURCE[0]}")/../mpi.sh"

# Runs draw their losses with gnuplot, which takes longer than most of them; a case that looks at
# pictures sets pictures=yes.
if [ -z "${pictures-}" ]; then
	mkdir -p "$tmp/bin"
	printf '#!/bin/sh\ncat >/dev/null\necho picture\n' >"$tmp/bin/gnuplot"
	chmod +x "$tmp/bin/gnuplot"
	PATH=$tmp/bin:$PATH
fi

require_train() {
	command -v uctrain >/dev/null || skip "uctrain was not built"
	require_mpi
	if [ "${TRAIN_DEVICE-}" = cuda ]; then
		find_cuda
		rank=("${cuda[@]}")
		device=(--device cuda)
	fi
}

find_cuda() {
	local said

	if said=$(uctrain "${tiny[@]}" --train_batch_size 1 --device cuda --steps 1 --log_dir "$tmp/probe" 2>&1); then
		cuda=(uctrain)
	elif [ -x "$top_builddir/tests/programs/uctrain_emulated" ]; then
		cuda=("$top_builddir/tests/programs/uctrain_emulated")
		export CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own
	else
		skip "no GPU ($(tail -n 1 <<<"$said")), and nothing that emulates one"
	fi
}

emulated() { [ "${rank[0]}" != uctrain ]; }

# A model that trains in milliseconds and has every kind of parameter.
# shellcheck disable=SC2034 # read by the cases
tiny=(--n_layer 2 --n_head 2 --n_embd 32 --vocab_size 256 --n_positions 32
	--seq_length 32 --lr 5e-3 --weight_decay 0.01 --gradient_clipping 1
	--optimizer AdamW --seed 42)

# Under sanitizers a few steps suffice, since all are alike; results of many steps are checked
# without them.
long() {
	steps=$1
	[ "${sanitize:-no}" = no ] && ! emulated && return
	steps=$2
	echo "$2 steps instead of $1"
}

# The command that each rank runs, with its first flags.
rank=(uctrain)
device=()

try_train() {
	local n=$1 name=$2
	shift 2
	on_ranks "$n" "${rank[@]}" ${device[@]+"${device[@]}"} --run_name "$name" --log_dir "$tmp/logs" \
		"$@" >"$tmp/$name.log" 2>&1
}

train() {
	try_train "$@" || fail "uctrain ${*:2} on $1 ranks: $(tail -n 5 "$tmp/$2.log")"
}

train_later() {
	local n=$1 name=$2
	shift 2
	ranks_later "$n" "$tmp/$name.log" ${device[@]+"${device[@]}"} \
		--run_name "$name" --log_dir "$tmp/logs" "$@"
}

refused_later() {
	refusals+=("$1" "$2")
	train_later "$3" "refused-${#refusals[@]}" "${@:4}"
}
refusals=()

# start_runs N WORD...
start_runs() {
	local log program=$top_builddir/tests/programs/uctrain_runs
	! emulated || program=${rank[0]}_runs
	# Print the output of failed runs.
	on_ranks "$1" "$program" "${@:2}" >"$tmp/said" 2>&1 ||
		fail "uctrain_runs on $1 ranks: $(tail -n 20 "$tmp/said")"
	for log in $(grep "^$tmp/.*\.log$" "$tmp/said"); do
		case $log in
		*/refused-*) mv "$log" "${log%.log}" ;;
		*) fail "uctrain on $1 ranks: $log: $(tail -n 5 "$log")" ;;
		esac
	done
}

train_all() {
	ranks_start start_runs
	while [ "${#refusals[@]}" -gt 0 ]; do
		check_refused "$tmp/refused-${#refusals[@]}" "${refusals[@]: -2}"
		rm -f "$tmp/refused-${#refusals[@]}"
		refusals=("${refusals[@]:0:${#refusals[@]}-2}")
	done
}

# check_refused LOG "what" PATTERN
check_refused() {
	[ -e "$1" ] || fail "$2: was accepted"
	check "$2: one message" test "$(grep -c '^uctrain: ' "$1")" = 1
	grep -q -e "^uctrain: .*$3" "$1" || fail "$2: $(tail -n 5 "$1")"
}

losses() {
	awk -F, 'NR > 1 && $2 != "" { print $1, $2 }' "$tmp/logs/$1"/*.csv
}

apart() {
	awk -v first="$3" '
	FNR == NR { a[$1] = $2; next }
	$1 >= first && $1 in a {
		d = $2 - a[$1]
		if (d < 0)
			d = -d
		if (d > max || !n)
			max = d
		n++
	}
	END { print n ? max : "none" }' <(losses "$1") <(losses "$2")
}

within() {
	awk -v limit="$1" -v x="$2" \
		'BEGIN { exit !(x ~ /^[0-9.e+-]+$/ && x + 0 <= limit + 0) }'
}

alike() {
	local label=$1 limit=$2 field d
	for field in 2 8 4; do
		d=$(awk -F, -v field=$field '
		FNR > 1 && $field != "" {
			if (FNR == NR)
				a[$1] = $field
			else if ($1 in a) {
				d = $field - a[$1]
				if (d < 0)
					d = -d
				if (d > max || !n)
					max = d
				n++
			}
		}
		END { print n ? max : "none" }' "$tmp/logs/$3/metrics.csv" "$tmp/logs/$4/metrics.csv")
		echo "$label: field $field $d apart"
		check "$label: field $field" within "$limit" "$d"
	done
}

same_bits() {
	check "$1" cmp <(cut -d, -f1,2,4,8 "$tmp/logs/$2/metrics.csv") \
		<(cut -d, -f1,2,4,8 "$tmp/logs/$3/metrics.csv")
}

# shared_later NAME FLAG...: queue ranks that share the model by these flags, with dropout and in
# 16-bit types, in $few steps, and with --rank_invariant
shared_later() {
	local name=$1 dtype
	shift
	train_later 1 "$name-one-drop" "${flags[@]}" --steps "$few" --dropout 0.1
	train_later 2 "$name-drop" "${flags[@]}" --steps "$few" --dropout 0.1 "$@"
	for dtype in bf16 fp16; do
		train_later 1 "$name-one-$dtype" "${flags[@]}" --steps "$few" --dtype $dtype
		train_later 2 "$name-$dtype" "${flags[@]}" --steps "$few" --dtype $dtype "$@"
	done
	train_later 2 "$name-exact" "${flags[@]}" --steps 5 --rank_invariant "$@"
	train_later 4 "$name-exact-by-two" "${flags[@]}" --steps 5 --rank_invariant --train_micro_batch_size_per_gpu 6 "$@"
}

# shared_alike NAME: check that they train like one rank, and that data-parallel ranks make no
# difference if requested.  16-bit types round sums differently; norms of this text differ more,
# on one rank too.
shared_alike() {
	local name=$1 dtype d
	alike "$name with dropout" 1e-5 "$name-one-drop" "$name-drop"
	for dtype in bf16 fp16; do
		d=$(apart "$name-one-$dtype" "$name-$dtype" 1)
		check "$name, $dtype: $d apart" within 3e-3 "$d"
	done
	same_bits "$name, rank-invariant" "$name-exact" "$name-exact-by-two"
}
