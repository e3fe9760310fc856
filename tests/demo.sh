#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/demo.sh BUILDDIR [LOG]
#
# Show the programs at work on a small GPT-2 that DeepSpeed trained and saved with
# ZeRO-3 on four ranks, and check the results.  Without FUSE, the tree is converted
# instead of mounted.  With LOG, the commands and their output go to that file, and only
# the results are printed.
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ ! -x "$1/ucckpt" ]; then
	sed -n '4s/^# //p' "$0" >&2
	exit 2
fi
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
good=$here/good
top_srcdir=$here/.. # for scripts that are sourced from the tests
readonly build here good top_srcdir
readonly case=dsuc_gpt2_z3_offload_dp4
readonly tag=global_step4
readonly tensor=zero/transformer.wte.weight/fp32.pt
PATH=$build:$build/tests/programs:$PATH

log=${2:-}
exec 3>&1 # for the user
[ -z "$log" ] || exec >>"$log" 2>&1

work=$(mktemp -d "${TMPDIR:-/tmp}/ucfs-demo.XXXXXX") || exit 1
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

clean_up()
{
	# Remove the directory only if nothing is mounted there.
	if is_mounted && ! fusermount3 -u "$work/mnt"; then
		fusermount3 -uz "$work/mnt" || return
	fi
	rm -rf "$work"
}

is_mounted()
{
	grep -qF " $work/mnt " /proc/self/mounts
}

can_mount()
{
	[ -r /dev/fuse ] && [ -w /dev/fuse ] &&
		command -v fusermount3 >/dev/null
}

step()
{
	printf '\n# %s\n' "$*"
}

# Print a command, then run it.
run()
{
	printf '$ %s\n' "$*"
	"$@"
}

# The first lines of a long output.
shorten()
{
	awk -v max="$1" 'NR <= max
		END { if (NR > max) printf "... %d more lines\n", NR - max }'
}

# Print the result of a step in one line.
show()
{
	printf '%s\n' "$*" >&3
}

fail()
{
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

# Show the tree in directory $1, mounted or converted.
show_tree()
{
	local tree=$1/${tag}_universal

	step "One directory for each parameter, one file for each state:"
	run ls -lR "$tree" | shorten 24

	step "The file that names the newest universal checkpoint:"
	run cat "$1/latest_universal"
	echo

	step "The files are the archives that torch.save writes, checksums and all:"
	run unzip -t "$tree/$tensor"

	step "A tensor, gathered from four ranks:"
	run tensor_stats "$tree/$tensor"

	step "Every file equals the one that DeepSpeed's own converter wrote:"
	check_digests "$tree"
}

# tests/good/README.md documents the digests file.
check_digests()
{
	awk -v dir="$1" '$1 == "file" { print $4 "  " dir "/" $2 }' \
		"$good/$case.digests" >digests
	[ -s digests ] || fail "no digests for $case"
	run sha256sum --check --quiet digests
	show "$(wc -l <digests) files of the universal tree, computed from the shards of four" \
		"ranks as they were read: each equals the file of DeepSpeed's converter"
}

cd "$work"
step "A run directory as DeepSpeed leaves it (real, but small):"
mkdir run mnt
cp -r "$good/$case/." run
chmod -R u+w run
run ls run "run/$tag"

step "What is it, and is it whole?"
run ucckpt info run | shorten 14

if can_mount; then
	step "Mount it.  Nothing is converted, nothing is written:"
	run ucfs run mnt
	run ls -l mnt

	show_tree mnt

	step "Where its bytes lie, for readers that want to go around FUSE:"
	run ucckpt extents "mnt/${tag}_universal/$tensor"

	step "Copy a file out, and compare (cmp says nothing: they are equal):"
	run cp "mnt/${tag}_universal/$tensor" copy.pt
	run cmp "mnt/${tag}_universal/$tensor" copy.pt

	step "Write the whole tree to a disk, and compare (nor does diff):"
	run ucckpt convert run "out/${tag}_universal"
	run diff -r "mnt/${tag}_universal" "out/${tag}_universal"

	step "The same ZeRO checkpoint, as if two ranks had saved it:"
	run ls "mnt/${tag}_dp2"
	run ucckpt diff run "mnt/${tag}_dp2"

	step "Unmount:"
	run fusermount3 -u mnt
	if is_mounted; then
		fail "still mounted"
	fi

	step "Pack the tag, and remove its directory when all of the pack is right:"
	run ucckpt pack "run/$tag"
	run ucckpt unpack --check "run/$tag.ucpack"
	run rm -r "run/$tag"
	run ls run

	step "The pack is mounted like the directory, and shows the same:"
	run ucfs run mnt
	run diff -r "mnt/${tag}_universal" "out/${tag}_universal"
	run fusermount3 -u mnt

	step "The directory, byte for byte as it was:"
	run ucckpt unpack "run/$tag.ucpack"
	run diff -r "$good/$case/$tag" "run/$tag"
else
	step "No FUSE here: /dev/fuse or fusermount3 is missing, or not for this user."
	step "The same tree, converted to a disk instead of mounted:"
	run ucckpt convert run "out/${tag}_universal"

	show_tree out
fi

# The purpose of the mount: train on four ranks, resume on two.
train_and_resume()
{
	local shape=(--n_layer 2 --n_head 4 --n_embd 64 --vocab_size 512
		--n_positions 64 --seq_length 64 --train_batch_size 16
		--train_micro_batch_size_per_gpu 4 --lr 2e-3 --zero_stage 3)
	local logs=(--log_dir "$work/logs" --checkpoint_dir) from
	local tmp=$work

	# Settings for Open MPI, as in the tests.
	# shellcheck source=tests/cases/mpi.sh
	. "$here/cases/mpi.sh"

	step "Train a GPT-2 on four ranks with ZeRO-3, saving half-way:"
	show "a GPT-2 is trained on four ranks, and goes on with two from the mount of its step 30:"
	run mpirun -n 4 uctrain "${shape[@]}" --steps 60 --run_name four_ranks \
		--checkpoint_interval 30 "${logs[@]}" "$work/trained" | tail -n 3
	run ls "$work/trained/global_step30"

	if can_mount; then
		step "Mount it, and go on with two ranks from step 30:"
		run ucfs "$work/trained" mnt
		from=mnt
	else
		step "Convert it, and go on with two ranks from step 30:"
		run ucckpt convert "$work/trained/global_step30" \
			"conv/global_step30_universal"
		from=conv
	fi
	run mpirun -n 2 uctrain "${shape[@]}" --steps 60 \
		--run_name two_ranks_resumed --resume --universal_checkpoint \
		--checkpoint_tag global_step30_universal "${logs[@]}" "$from" |
		tail -n 3
	if is_mounted; then
		run fusermount3 -u mnt
	fi

	step "The losses of both, step by step:"
	compare_losses "$work/logs/four_ranks" "$work/logs/two_ranks_resumed"
	if command -v gnuplot >/dev/null; then
		run ucplot "$work/logs/four_ranks" \
			"$work/logs/two_ranks_resumed" --png -o "$build/demo"
		run ls "$build"/demo*.png
		show "both in one picture: $(ls "$build"/demo*.png | head -n 1)"
	fi
}

# The losses of runs $1 and $2 side by side, and their largest difference.
compare_losses()
{
	awk -F, '
	FNR == 1 { file++; next }
	file == 1 { loss[$1] = $2; next }
	{
		if (!n)
			printf "  step   loss on 4 ranks   loss on 2 ranks\n"
		if (n % 10 == 0 || n == 29)
			printf "%6d %17.6f %17.6f\n", $1, loss[$1], $2
		d = $2 - loss[$1]
		d = d < 0 ? -d : d
		max = d > max ? d : max
		n++
	}
	END {
		printf "%d steps, at most %.2g apart\n", n, max
		exit n != 30 || max > 2e-5
	}' "$1"/*.csv "$2"/*.csv >&3
}

# The same with ranks that share the model, and from weights alone.
show_guide()
{
	step "Train on two tensor-parallel ranks in two stages, resume on other topologies:"
	run bash "$here/../examples/guide.sh" -s "$good/megatron/data/tiny_text_document" guide
	run head -n 3 guide/guide.csv
	show "and on tensor-parallel ranks in two stages, resumed on two other topologies:" \
		"equal losses"
}

if command -v uctrain >/dev/null && command -v mpirun >/dev/null; then
	train_and_resume
	if can_mount; then
		show_guide
	fi
else
	step "No uctrain or no mpirun here: training is not shown."
fi

step "That was all; the manuals are ucfs(1), ucckpt(1), uctrain(1) and ucplot(1)."
[ -z "$log" ] || show "each command, and what it printed: $log (or --verbose)"
