#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# uctrain on a GPU: does it start, is it right, and how fast is it: training steps of GPT-2
# in bfloat16 in turns with PyTorch with torch.compile, and against the GPU's peak; loading
# a checkpoint through the mount's extents, against a copy from pinned memory and plain
# reads of the mounted files.
#
#   gpu.sh [PART...]
#
# Each part takes less than eight minutes, for machines that limit a call's time;
# without PART all of them run:
#
#   first		a few steps of GPT-2 124M in each type; a failure names its place
#   tests		test_cuda, test_graph, a few steps under the tools of compute-sanitizer
#   pairs		the same runs on the CPU and on the GPU: do losses agree?  In each
#   			type, of odd and of large shapes, in each stage
#   same		the same bits in each run, with a CUDA graph and without; resumed on the
#   			GPU and on the CPU, from files, and from a mount or a converted tree
#   ops			the operations of a step, one by one (gpuops), and PyTorch's
#   gpt2, gpt2-xl	our steps, with and without a CUDA graph
#   gpt2-torch, gpt2-xl-torch
#   			our steps and PyTorch's, in turns
#   load		loading a checkpoint of gpt2-large
#
# Rounds are repeated while time allows.  Programs that are not in PATH are searched in
# the build directory, $top_builddir.
#
# UCFS_GPU_SECONDS	the time of a part (420)
# UCFS_GPU_OUT		a directory that keeps the output and the figures of all runs
# UCFS_DEEPSPEED_PYTHON	a Python with PyTorch for CUDA (python3); without it only our side
# 			is measured
# UCFS_GPU_TFLOPS	the GPU's dense bfloat16 peak (989: H100, H200)
# UCFS_GPU_BATCH	rows per step of gpt2 and of gpt2-xl ("64 16" with 100 GB of
# 			device memory, as an H200 has, else "32 8"; in a larger
# 			batch the optimizer's share of a step is smaller)
. "${BASH_SOURCE%/*}/lib.sh"

all=(first tests pairs same ops gpt2 gpt2-xl gpt2-torch gpt2-xl-torch load)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
	case " ${all[*]} " in
	*" $part "*) ;;
	*) echo "gpu.sh: $part: not one of ${all[*]}" >&2 && exit 2 ;;
	esac
done
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 ||
	skip "there is no GPU, or no nvidia-smi that lists one"
here=${BASH_SOURCE%/*}
python=${UCFS_DEEPSPEED_PYTHON:-$(command -v python3)} || python=
said=$("${python:-false}" -c 'import torch
assert torch.cuda.is_available()
print("PyTorch", torch.__version__)' 2>&1) || python=
echo "PyTorch: ${python:-not here: ours alone; $(tail -n 1 <<<"$said")}"
build=${top_builddir:-.}
PATH=$PATH:$build:$build/tests/bench:$build/tests/unit/train
begin_work
out=${UCFS_GPU_OUT:-$work/out}
mkdir -p "$out"

# cuBLASLt from PyTorch's packages, which the dynamic linker and uctrain do not search. Only for
# our programs.
libraries=${LD_LIBRARY_PATH:-}
[ -z "$python" ] || libraries=$libraries:$("$python" -c 'import glob, os, sys
print(":".join({os.path.dirname(f) for d in sys.path
	for f in glob.glob(d + "/nvidia/**/libcublasLt.so.*", recursive=True)}))')
ours_with() { LD_LIBRARY_PATH=$libraries "$@"; }

# left: print the remaining seconds of this part.
left() { echo $((limit - (SECONDS - since))); }

# run NAME FLAG...: train with output in $out/NAME.log and figures in $out/NAME.
run() {
	rm -rf "${out:?}/$1"
	ours_with timeout -k 3 "$(($(left) > 9 ? $(left) : 9))" uctrain --run_name "$1" --log_dir "$out" "${@:2}" \
		>"$out/$1.log" 2>&1
}

# try NAME COMMAND...: print in one line how it ended.
try() {
	local name=$1 begun=$SECONDS rc=0 how=ok

	"${@:2}" >"$out/$name.log" 2>&1 || rc=$?
	case $rc in
	0) ;;
	77) how=skipped ;;
	124 | 137) how="FAILED: no time left" ;;
	*) how="FAILED: status $rc" ;;
	esac
	printf '%-24s %s, %d s: %s\n' "$name" "$how" $((SECONDS - begun)) "$(grep . "$out/$name.log" | tail -n 1 | cut -c1-200)"
	[ "$rc" -eq 0 ]
}
try_run() { try "$1" run "$@"; }

# median_of NAME COLUMN: print the median of the figures after warm-up.
median_of() {
	awk -F, -v c="$2" 'NR > 6 { print $c }' "$out/$1/metrics.csv" | sort -g |
		awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# near WHAT LIMIT A B [FIRST]: check that losses of two runs from step FIRST on differ by at most
# LIMIT of them, and norms of gradients by ten times that.
near() {
	awk -F, -v what="$1" -v limit="$2" -v first="${5:-1}" '
	function apart(x, y) {
		if (x == y)
			return 0
		if (x + 0 == 0 || y !~ /^[0-9]/)
			return 1e9
		return x > y ? x / y - 1 : y / x - 1
	}
	FNR == 1 || $1 < first { next }
	NR == FNR { loss[$1] = $2; norm[$1] = $4; next }
	$1 in loss {
		n++
		if ((d = apart(loss[$1], $2)) > l) l = d
		if ((d = apart(norm[$1], $4)) > g) g = d
	}
	END {
		ok = n && l <= limit && g <= 10 * limit
		printf "%-24s %s: losses %.1e apart, norms %.1e, in %d steps (%g)\n", what, ok ? "ok" : "FAILED", l, g, n, limit
		exit !ok
	}' "$out/$3/metrics.csv" "$out/$4/metrics.csv" 2>/dev/null || echo "$1: FAILED: see $3.log and $4.log"
}

# ours MODEL BATCH STEPS FLAG...: print the median of tokens/s after warm-up.
ours() {
	run run --device cuda --dtype bf16 --model "$1" --seq_length 1024 \
		--train_batch_size "$2" --train_micro_batch_size_per_gpu "$2" --steps "$3" "${@:4}" &&
		median_of run 5
}

limit=${UCFS_GPU_SECONDS:-420}
since=$SECONDS
ours gpt2 1 7 >/dev/null || skip "$(tail -n 1 "$out/run.log")"
sed -n 's/^uctrain: \(cuBLASLt .*\)/\1/p' "$out/run.log"

small=(--n_layer 2 --n_head 2 --n_embd 64 --vocab_size 1000 --seq_length 64 --train_batch_size 4
	--train_micro_batch_size_per_gpu 2 --steps 12)

first() {
	local gpt2=(--model gpt2 --device cuda --train_batch_size 2 --train_micro_batch_size_per_gpu 2 --steps 3) dtype

	for dtype in bf16 fp16 fp32; do
		try_run "first-$dtype" "${gpt2[@]}" --dtype $dtype && continue
		# Find the operation: without a graph, without measured algorithms, one by one.
		try_run "$dtype-no-graph" "${gpt2[@]}" --dtype $dtype --cuda_graph off ||
			CUDA_LAUNCH_BLOCKING=1 try_run "$dtype-one-by-one" "${gpt2[@]}" --dtype $dtype \
				--cuda_graph off --deterministic || true
	done
}

# has PROGRAM: true, or print that it is missing.
has() {
	command -v "$1" >/dev/null || {
		echo "$part: no $1"
		return 1
	}
}

tests() {
	local t

	for t in test_cuda test_graph; do
		! has $t || { ours_with timeout "$(left)" $t 2>&1 | tee "$out/$t.log"; } || echo "$t: FAILED"
	done
	has compute-sanitizer || return 0
	for t in memcheck racecheck synccheck initcheck; do
		try "$t" ours_with timeout "$(left)" compute-sanitizer --tool $t --error-exitcode 9 \
			--target-processes all uctrain --device cuda --dtype bf16 --n_layer 1 --n_head 2 \
			--n_embd 128 --vocab_size 1003 --seq_length 96 --train_batch_size 4 \
			--train_micro_batch_size_per_gpu 2 --steps 2 --cuda_graph off --run_name $t --log_dir "$out" || true
	done
}

# pair NAME LIMIT FLAG...: compare a run on the CPU and on the GPU.
pair() {
	run "$1-cpu" "${@:3}" || true
	run "$1-cuda" "${@:3}" --device cuda || true
	near "$1" "$2" "$1-cpu" "$1-cuda"
}

pairs() {
	local dtype odd=(--n_head 3 --n_embd 66 --vocab_size 1003 --seq_length 37) stage
	local large=(--model gpt2 --seq_length 256 --train_batch_size 2 --train_micro_batch_size_per_gpu 2 --steps 3)

	for dtype in fp32:1e-4 bf16:2e-2 fp16:2e-2; do
		pair "${dtype%:*}" "${dtype#*:}" "${small[@]}" --dtype "${dtype%:*}"
		pair "odd-${dtype%:*}" "${dtype#*:}" "${small[@]}" "${odd[@]}" --dtype "${dtype%:*}"
		pair "gpt2-${dtype%:*}" "${dtype#*:}" "${large[@]}" --dtype "${dtype%:*}"
		pair "wide-heads-${dtype%:*}" "${dtype#*:}" "${small[@]}" --n_embd 512 --dtype "${dtype%:*}"
	done
	pair heads-of-128 2e-2 "${small[@]}" --n_embd 256 --dtype bf16
	pair long-rows 2e-2 "${small[@]}" --n_positions 1024 --seq_length 1000 --dtype bf16 --steps 4
	for stage in 2 3; do pair "stage-$stage" 1e-4 "${small[@]}" --zero_stage "$stage"; done
	pair dropout 1e-4 "${small[@]}" --dropout 0.1
	pair recompute 1e-4 "${small[@]}" --recompute
	pair validation 1e-4 "${small[@]}" --eval_interval 3
	pair invariant 1e-4 "${small[@]}" --rank_invariant
}

same() {
	local f bits=("${small[@]}" --dtype bf16 --deterministic --device cuda) saved=$work/saved tree how=mount

	for f in on off auto; do try_run "bits-$f" "${bits[@]}" --cuda_graph $f || true; done
	near "with and without a graph" 0 bits-on bits-off
	near "again" 0 bits-on bits-auto
	try_run saved "${small[@]}" --deterministic --device cuda --checkpoint_dir "$saved" --checkpoint_interval 6 || return 0
	! has ucckpt || try check ucckpt check --data "$saved/global_step6" || true
	for f in cuda cpu; do
		try_run "resumed-$f" "${small[@]}" --deterministic --device $f --zero_stage 3 \
			--resume="$saved" --checkpoint_tag global_step6 || true
		near "resumed on $f" 1e-4 saved "resumed-$f" 7
	done
	source=$saved tree=$mnt/global_step6_universal
	if [ ! -w /dev/fuse ] || ! has ucfs || ! mount_as ro; then
		how="converted tree" tree=$work/tree
		try convert ucckpt convert "$saved/global_step6" "$tree" || return 0
	fi
	try_run resumed-tree "${small[@]}" --deterministic --device cuda --resume="${tree%/*}" \
		--checkpoint_tag "${tree##*/}" --universal_checkpoint || true
	near "resumed from a $how" 1e-4 saved resumed-tree 7
	[ "$how" != mount ] || unmount
}

# Floating-point operations per token, forward and backward: 6 per parameter, and
# 12 * layers * width * positions for attention.
utilisation() {
	awk -v rate="$1" -v of="$2" -v peak="${UCFS_GPU_TFLOPS:-989}" 'BEGIN {
		n = of == "gpt2" ? 124439808 : 1557611200
		attention = 12 * 1024 * (of == "gpt2" ? 12 * 768 : 48 * 1600)
		printf "%.3f", rate * (6 * n + attention) / peak / 1e12 }'
}

# in_rounds COMMAND...: run as many rounds as time allows, at least one.
in_rounds() {
	local begun longest=0 i

	for ((i = 0; i < rounds; i++)); do
		begun=$SECONDS
		[ "$i" -eq 0 ] || [ $((begun - since + longest)) -lt "$limit" ] ||
			break
		"$@"
		[ $((SECONDS - begun)) -le "$longest" ] ||
			longest=$((SECONDS - begun))
	done
	echo "$part: $i rounds in $((SECONDS - since)) s"
}

step_round() {
	add "$1.ours" "$(ours "$1" "$2" 30)"
	peak=$(median_of run 11)
	add "$1.queued" "$(ours "$1" "$2" 30 --cuda_graph off)"
}

# steps MODEL BATCH BAR
steps() {
	in_rounds step_round "$1" "$2"
	row_of "$1, $2 x 1024" "$1.ours" tokens/s
	bar "  model FLOP utilisation" \
		"$(utilisation "$(median "$1.ours")" "$1")" ">=" "$3"
	row_of "  without a CUDA graph" "$1.queued" tokens/s
	echo "  bytes of the device, most: ${peak:-unknown}"
}

torch_round() {
	add "$1.beside" "$(ours "$1" "$2" 30)"
	add "$1.torch" \
		"$("$python" "$here/gpustep.py" step "$1" "$2" 1024 25 2>/dev/null)"
}

# torch_steps MODEL BATCH
torch_steps() {
	[ -n "$python" ] || {
		echo "$part: no PyTorch"
		return 0
	}
	in_rounds torch_round "$1" "$2"
	row_of "$1, $2 x 1024" "$1.beside" tokens/s
	row_of "  PyTorch, compiled" "$1.torch" tokens/s
	bar "  ours to PyTorch's" "$(ratio "$(median "$1.beside")" \
		"$(median "$1.torch")")" ">=" 1.15
}

ops() {
	local width

	for width in 768 1600; do
		echo "gpuops -w $width"
		! has gpuops || ours_with timeout "$(left)" gpuops -b 16 -w "$width" 2>&1 || echo "$part: FAILED: $?"
	done
	[ -z "$python" ] || "$python" "$here/gpustep.py" rates 16 || echo "$part: FAILED: PyTorch's rates"
}

# Print the loading rate of the last run in GB/s.
loaded() {
	sed -n 's/.*: all ranks read \([0-9.]*\) MB of tensors, .*, in \([0-9.]*\) s$/\1 \2/p' \
		"$out/run.log" | awk '{ printf "%.2f", $1 / 1e3 / $2 }'
}

load_round() {
	local n start

	cat "$source"/*/*.pt >/dev/null # load it into the page cache
	ours gpt2-large 1 2 --resume="$mnt" --checkpoint_tag global_step1_universal --universal_checkpoint >/dev/null
	add load.extents "$(loaded)"
	start=$(date +%s.%N)
	n=$(cat "$mnt"/*_universal/zero/*/{fp32,exp_avg,exp_avg_sq}.pt | wc -c)
	add load.plain "$(awk -v s="$start" -v e="$(date +%s.%N)" \
		-v n="$n" 'BEGIN { printf "%.2f", n / 1e9 / (e - s) }')"
	[ -z "$python" ] ||
		add load.pinned "$("$python" "$here/gpustep.py" copy)"
}

# Make 11 GB, in memory if possible: else a disk would be measured.
loading() {
	[ -w /dev/fuse ] && command -v ucfs >/dev/null || {
		echo "$part: no ucfs, or no /dev/fuse"
		return 0
	}
	source=$work/run
	if [ "$(df --output=avail -BG /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)" -gt 20 ]; then
		dest=$(mktemp -d /dev/shm/ucfs-bench.XXXXXX) || exit 1 # cleanup removes it
		source=$dest/run
	fi
	ours gpt2-large 1 1 --checkpoint_dir "$source" >/dev/null
	mount_as ro
	in_rounds load_round
	unmount
	row_of "loading gpt2-large through extents" load.extents GB/s
	row_of "  plain reads of the mount" load.plain GB/s
	[ -n "$python" ] || return 0
	row_of "  cudaMemcpyAsync from pinned memory" load.pinned GB/s
	bar "  extents to pinned memory" "$(ratio "$(median load.extents)" \
		"$(median load.pinned)")" ">=" 0.8
}

printf 'gpu: %s, %d rounds\n' \
	"$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" "$rounds"
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits |
	head -n 1)
fits="32 8"
[ "${memory:-0}" -lt 100000 ] || fits="64 16"
read -r small_batch large_batch <<<"${UCFS_GPU_BATCH:-$fits}"
for part in "${parts[@]}"; do
	since=$SECONDS
	case $part in
	first | tests | pairs | same | ops) "$part" ;;
	gpt2) steps gpt2 "$small_batch" 0.50 ;;
	gpt2-xl) steps gpt2-xl "$large_batch" 0.55 ;;
	gpt2-torch) torch_steps gpt2 "$small_batch" ;;
	gpt2-xl-torch) torch_steps gpt2-xl "$large_batch" ;;
	load) loading ;;
	esac
done
