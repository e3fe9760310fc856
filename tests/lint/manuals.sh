#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The manuals: mandoc and groff print no warnings; a page of a command has its options under
# OPTIONS, and only those, and its exit statuses; an option has one name.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"
man=$(realpath "$top_srcdir")/man

for page in "$man"/*.[1-8]; do
	name=${page##*/}
	if command -v mandoc >/dev/null; then
		said=$(mandoc -T lint -W warning "$page")
		check "$name: mandoc: $said" test -z "$said"
	fi
	if command -v groff >/dev/null; then
		# Ignore warnings about the database of manuals.
		said=$(groff -man -ww -z "$page" 2>&1 | grep -v '^mandoc: outdated')
		check "$name: groff: $said" test -z "$said"
	fi
	case $name in
	*.[18])
		check "$name: OPTIONS" grep -qx '\.Sh OPTIONS' "$page"
		check "$name: EXIT STATUS" grep -qx '\.Sh EXIT STATUS' "$page"
		;;
	esac
done
check "ucfs(1) has at most 9,000 words" test "$(wc -w <"$man/ucfs.1")" -le 9000

# entries PAGE [SUBSECTION]: print the long options of its section OPTIONS, or of a part of it.
entries() {
	awk -v part="${2-}" '
	/^\.Sh / { options = $2 == "OPTIONS"; here = part == "" }
	/^\.Ss / { here = part == "" || $2 == part }
	options && here && /^\.It / { print }
	' "$man/$1" | grep -oE 'Fl -[a-z][a-z_0-9-]*' | sed 's/Fl -//' | sort -u
}
# of_help PROGRAM...: print the options that its help names.
of_help() {
	"$@" | grep -oE '^ +(-[a-zA-Z], )?--[a-z][a-z_0-9-]*' | sed 's/.*--//' | sort -u
}
# same WHAT LIST LIST
same() {
	local -r differ=$(diff <(echo "$2") <(echo "$3"))
	check "$1: the program (<), the manual (>): $differ" test -z "$differ"
}
for command in $(ucckpt --help | sed -n 's/^  \([a-z]\+\) .*/\1/p'); do
	same "ucckpt $command" "$(of_help ucckpt "$command" --help | grep -vx help)" \
		"$(entries ucckpt.1 "$command")"
done
same ucplot "$(of_help ucplot --help)" "$(entries ucplot.1)"
[ ! -x "$top_builddir/uctrain" ] || same uctrain "$(of_help uctrain --help=all)" "$(entries uctrain.1)"

# Options of the library and of a mount; ucckpt(1) also has options of commands.
library=$(sed -nE 's/^\t\{ "([a-z][a-z_0-9]*)=?", .*/\1/p' "$top_srcdir/ckpt/commands/settings.c" | sort -u)
rows=$(sed -n '/^static const struct row rows/,/^};/p' "$top_srcdir/fs/options_table.c")
refused=$(grep -oE '^	\{ "[a-z_= ]*", \.wrong' <<<"$rows" | cut -d'"' -f2 | tr -d = | tr ' ' '\n' | sort -u)
own=$(sed -nE 's/^\t\{ "([a-z][a-z_0-9]*)=?", (FLAG|\.set).*/\1/p' <<<"$rows" | sort -u)
check "options are found" test "$(wc -w <<<"$library$own$refused")" -gt 30
documented=$(awk '
	/^\.Sh / { options = $2 == "OPTIONS" }
	options && /^\.It Cm / { gsub(/Ns = Ns [^,]*( , |$)/, ", "); gsub(/\.It|Cm|,/, ""); print }
	' "$man/ucfs.1" | tr -s ' ' '\n' | grep . | sort -u)
for name in $(sort -u <<<"$library"$'\n'"$own" | grep -vxF "$refused"); do
	check "ucfs(1): OPTIONS has $name" grep -qx "$name" <<<"$documented"
done
for name in $(grep -xF "$library" <<<"$refused"); do
	check "ucckpt(1): OPTIONS has $name" grep -qx "$name" <(entries ucckpt.1)
done

# A long option that sets a library option has its name, except those that scripts have from
# ds_to_universal.py, and from convert when it said --to.
others=$(cat "$top_srcdir"/cmd/*.[ch] | awk '
	match($0, /\{ "[a-z_]+"/) { name = substr($0, RSTART + 3, RLENGTH - 4) }
	match($0, /\.set = "[a-z_]+"/) {
		set = substr($0, RSTART + 8, RLENGTH - 9)
		if (set != name) print name
	}' | sort | tr '\n' ' ')
check "one name: $others" test "$others" = "num_extract_workers num_merge_workers to "

# statuses FILE PAGE: print the exit statuses of an enum, and of the manual.
statuses() {
	same "exit statuses of $2" "$(grep -oE '\b(CMD|EXIT)_[A-Z]+ = [0-9]' "$top_srcdir/$1" | grep -oE '[0-9]$' | sort -u)" \
		"$(sed -n '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/s/^\.It \([0-9]\)$/\1/p' "$man/$2" | sort -u)"
}
statuses cmd/cmd.h ucckpt.1
statuses gpu/plot/plot_main.c ucplot.1
# exits STATUS COMMAND...
exits() {
	"${@:2}" >/dev/null 2>&1
	local -r status=$?
	check "${*:2}: exit status $status, not $1" test "$status" = "$1"
}
tag=$good/z1_fp32_dp2/global_step4
exits 0 ucckpt check "$tag"
exits 1 ucckpt check /nonexistent
exits 2 ucckpt check
exits 0 ucckpt diff "$tag" "$tag"
exits 1 ucckpt diff "$tag" "$good/pp2_dp1_z1_fp32"
exits 2 ucckpt diff "$tag" /nonexistent
exits 2 ucckpt diff "$tag"
[ ! -x "$top_builddir/ucfs" ] || exits 1 ucfs /nonexistent /nonexistent
[ ! -x "$top_builddir/ucfs" ] || exits 1 ucfs --nonsense
exits 1 ucplot /nonexistent
exits 2 ucplot
[ ! -x "$top_builddir/uctrain" ] || exits 2 uctrain --nonsense
finish
