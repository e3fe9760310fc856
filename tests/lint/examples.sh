#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The commands in README and the manuals work, and print the output shown there.
#
# Commands follow "$ " or "# ", in README's indented blocks and in the manuals' literal ones; an
# output that is shown must have the same words, as far as "...".  Each command is run as it stands,
# but below a directory of the test instead of /data, /mnt, /tmp and /elsewhere.  Trainings take all
# their steps, with a model of 10 thousand parameters.  What cannot be run here is listed under
# `not_run`, with the reason.  (Code in Python is run by tests/interop.)
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "$0")/../cases/mpi.sh"
require_fuse
src=$(realpath "$top_srcdir")

# The first words of commands that are not run, and why.
not_run=(
	"systemctl |needs root and systemd"
	"docker run |needs another machine"
	"unshare -rm |needs a /dev/fuse that users may open: cases/mount/descriptor.sh"
	"mount -t overlay |needs root; part of what precedes it"
	"ucfs /data/run1 /mnt/run1|needs root: part of the overlay"
	"mkdir -p /data/new |needs root: part of the overlay"
	"awk '\$2 ~ |needs a mount"
	"examples/guide.sh |a case of its own: cases/train/guide.sh"
)

# extract FILE: for each block with commands a line "B", for each command "C LINE
# COMMAND", with \n for line ends, and for each line of its output "O TEXT".
extract() {
	awk -v readme="$([ "${1##*/}" = README.md ] && echo 1)" '
	function unescape(s) {
		gsub(/\\e/, "\\", s); gsub(/\\-/, "-", s); gsub(/\\&/, "", s)
		gsub(/\\\\/, "\\", s)
		return s
	}
	function open_ended(s,  quotes) {
		quotes = gsub(/\047/, "\047", s)
		return s ~ /[\\|]$/ || quotes % 2
	}
	/^\.Bd -literal/ && !readme { inside = 1; fresh = 1; next }
	/^\.Ed/ { inside = 0; more = 0; next }
	readme { inside = /^    /; if (!inside) { fresh = 1; more = 0 } sub(/^    /, "") }
	!inside { next }
	!readme { $0 = unescape($0) }
	more { command = command "\\n" $0; more = open_ended(command)
		if (!more) print command
		next }
	/^[$#] / {
		if (fresh) print "B"
		fresh = 0
		said = 1
		command = "C " NR " " substr($0, 3)
		more = open_ended(command)
		if (!more) print command
		next }
	/^#!/ { said = 0 }
	!fresh && said { print "O " $0 }
	fresh { said = 0 }
	' "$1"
}

# The machine that they speak of.
mkdir "$tmp/data" "$tmp/mnt" "$tmp/bin" "$tmp/work" "$tmp/out"
mkdir "$tmp/data/run" "$tmp/mnt/run"
tag=$good/z2_padded_vocab_dp2/$(tag_of z2_padded_vocab_dp2)
cp -r "$tag" "$tmp/data/run/global_step1000"
echo -n global_step1000 >"$tmp/data/run/latest"
ln -s "$src/tests" "$tmp/work/tests"
mkdir "$tmp/work/build" "$tmp/work/mnt" "$tmp/work/runs"
for program in ucfs ucckpt ucplot; do
	ln -s "$(realpath "$top_builddir")/$program" "$tmp/work/build/$program"
done
# A smaller model than the one that is asked for.
cat >"$tmp/work/build/uctrain" <<EOF
#!/bin/sh
exec '$(realpath "$top_builddir")/uctrain' "\$@" --n_layer 2 --n_head 2 --n_embd 16 \\
	--vocab_size 64 --n_positions 8 --seq_length 8
EOF
chmod +x "$tmp/work/build/uctrain"
export PATH=$tmp/work/build:$PATH
# Files that the manuals assume.
echo '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}' >"$tmp/work/ds.json"
for ranks in 4 2; do
	ln -s gpt2-dsuc_tp1_pp1_dp${ranks}_sp1 "$tmp/work/runs/gpt2_tp1_pp1_dp${ranks}_sp1"
done

# Why a command cannot be run here; empty if it can be.
reason_of() {
	local entry
	for entry in "${not_run[@]}"; do
		case $1 in
		"${entry%%|*}"*)
			used+="$entry
"
			why=${entry#*|}
			return
			;;
		esac
	done
	why=
	case $1 in
	*torch*) python3 -c 'import torch' 2>/dev/null || why="no torch for python3" ;;
	*jq\ *) command -v jq >/dev/null || why="no jq" ;;
	*mpirun*)
		command -v mpirun >/dev/null || why="no mpirun"
		[ -x "$top_builddir/uctrain" ] || why="built without uctrain"
		;;
	"ucfs run "* | "fusermount3 -u mnt") [ -d run ] || why="nothing was trained" ;;
	ucplot*)
		[ -d run ] || why="nothing was trained"
		[[ $1 = *--csv* ]] || command -v gnuplot >/dev/null || why="no gnuplot"
		;;
	esac
}

here() {
	sed -E -e "s#/tmp/mnt\\b#$tmp/mnt/tmp#g; s#(^|[ '\":])/(data|mnt|elsewhere)\\b#\\1$tmp/\\2#g; s#\\bRUN\\b#$tmp/data/run#; s#\\bOUTPUT\\b#$tmp/out/converted#"
}

words() {
	tr -s ' \n' '\n\n' | grep -v '^\.\.\.$' | sort
}

# Compare the output of the last command with the one shown.
compare() {
	[ -n "$shown" ] || return
	case $shown in
	*...) [ "$(tr -d ' \n' <<<"${shown%...}" | head -c 12)" = "$(tr -d ' \n' <"$tmp/said" | head -c 12)" ] ;;
	*) [ "$(words <<<"$shown")" = "$(here <<<"$(cat "$tmp/said")" | words)" ] ;;
	esac || fail "$at: printed '$(head -n 5 "$tmp/said")', not '$shown'"
	shown=
}

try() {
	local command=$1
	reason_of "$command"
	at=$file:$2
	if [ -n "$why" ]; then
		echo "not run: $at: $(head -n 1 <<<"$command"): $why"
		skipping=1
		return
	fi
	skipping=
	ran=$((ran + 1))
	eval "$(here <<<"$command")" >"$tmp/said" 2>"$tmp/complaints" </dev/null ||
		fail "$at: $command: $(grep -E '^uc[a-z]+: ' "$tmp/complaints" ||
			tail -n 3 "$tmp/complaints")"
}

unmount_all() {
	cd "$tmp/work" || exit 1
	for dir in "$tmp/mnt/run" "$tmp/mnt/tmp" "$tmp/work/mnt"; do
		mountpoint -q "$dir" && fusermount3 -u "$dir"
	done
}

# Mount for a block that uses the mount without making it.
mount_for() {
	case $1 in
	*"ucfs /data/run /mnt/run"*) ;;
	*/mnt/run/*) ucfs "$tmp/data/run" "$tmp/mnt/run" 2>/dev/null ;;
	esac
}

try_file() {
	local kind line rest lines
	file=$1
	mapfile -t lines < <(extract "$src/$1")
	for ((i = 0; i < ${#lines[@]}; i++)); do
		read -r kind line rest <<<"${lines[i]}"
		case $kind in
		B)
			compare
			unmount_all
			mount_for "${lines[i + 1]}"
			;;
		C)
			compare
			try "${rest//\\n/$'\n'}" "$line"
			;;
		O) [ -n "$skipping" ] || shown+="${lines[i]#O }
" ;;
		esac
	done
	shown=${shown%$'\n'}
	compare
	unmount_all
}

used=
ran=0
shown=
skipping=
cd "$tmp/work" || exit 1
for file in README.md man/ucfs.1 man/ucckpt.1 man/uctrain.1 man/ucplot.1 man/ucfs-deploy.7 man/mount.ucfs.8; do
	[ "$file" != man/ucckpt.1 ] || cp -r "$tag" "$tmp/data/run/global_step999"
	try_file "$file"
done
check "commands were run" test "$ran" -ge 15
for entry in "${not_run[@]}"; do
	case $used in
	*"$entry"*) ;;
	*) fail "not_run: nothing begins with '${entry%%|*}'" ;;
	esac
done

# Run lines of fstab as mount(8) would.
if [ "$(id -u)" -eq 0 ]; then
	ln -s "$(command -v ucfs)" "$tmp/bin/mount.ucfs"
	while read -r source dir type options _; do
		mkdir -p "$tmp$dir" "$tmp$source"
		[ "$source" = /data/run ] || cp -rn "$tmp/data/run/." "$tmp$source"
		"$tmp/bin/mount.ucfs" "$tmp$source" "$tmp$dir" -o "$options" 2>"$tmp/complaints" ||
			fail "fstab: $source $dir $type $options: $(cat "$tmp/complaints")"
		fusermount3 -u "$tmp$dir"
	done < <(grep -h -E '^/data/.* (fuse\.)?ucfs .* 0 0$' "$src"/man/*.[1-9])
fi
finish
