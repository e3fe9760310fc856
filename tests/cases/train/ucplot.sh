#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucplot reads logs of uctrain and other trainers, and writes tables and a picture.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require gnuplot
events=${top_srcdir:?}/tests/events
cd "$tmp" || exit 1

# plots ARGUMENT...: it must work silently.
plots() {
	ucplot "$@" >said 2>&1 || fail "ucplot $*: $(cat said)"
	check "ucplot $*: says nothing" test ! -s said
}

# refuses STATUS REGEX ARGUMENT...: it must fail with one line.
refuses() {
	local want=$1 says=$2
	shift 2
	ucplot "$@" >said 2>&1
	check "ucplot $*: exit status" test $? = "$want"
	check "ucplot $*: one line" test "$(wc -l <said)" = 1
	grep -q -e "^ucplot: .*$says" said || fail "ucplot $*: $(cat said)"
}

# table FILE LINE...: the file consists of exactly these lines.
table() {
	local file=$1
	shift
	printf '%s\n' "$@" | cmp -s - "$file" || fail "$file is $(cat "$file")"
}

picture() {
	check "$1 is a PNG" test "$(head -c 8 "$1" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a
}

run=gpt2_tp1_pp1_dp4_sp1
mkdir -p "runs/$run"
printf '%s\n' step,loss,lr,valid_loss 1,5.25,0.1, 2,4.5,0.1,4.75 3,nan,0.1, >"runs/$run/metrics.csv"
plots "runs/$run" -o own
table "own-$run.csv" step,loss,valid_loss 1,5.25, 2,4.5,4.75 3,nan,
picture own.png

plots "$events/simple" "$events/tensor" -o tb
table tb-simple.csv step,loss,valid_loss 1,5, 2,4.5,5.5 3,4, 4,3.5,4.5
table tb-tensor.csv step,loss,valid_loss 1,5, 2,4.5,5.5
picture tb.png
plots "$events/tensor/events.out.tfevents.1.host" --csv -o file
table file-tensor.csv step,loss,valid_loss 1,5, 2,4.5,5.5
check "--csv alone: no picture" test ! -e file.png

printf 'Wall time,Step,Value\r\n1.5,10,3\r\n1.6,20,2.5\r\n' >board.csv
printf '%s\n' '"epoch","step","train_loss","eval_loss"' '0,1,7,' '0,2,6,"6.5"' '0,1,5,' >other.csv
plots board.csv other.csv -o csv
table csv-board.csv step,loss,valid_loss 10,3, 20,2.5,
table csv-other.csv step,loss,valid_loss 1,5,

plots "runs/$run" --tag train/lr --csv -o lr
table lr-$run.csv step,lr 1,0.1 2,0.1 3,0.1
plots "$events/simple" --tag valid/loss --png -o valid
picture valid.png
check "--png alone: no table" test ! -e valid-simple.csv

# Capture the input of gnuplot.
gnuplot=$(command -v gnuplot)
mkdir spy
printf '#!/bin/sh\ntee "%s" | "%s" "$@"\n' "$tmp/script" "$gnuplot" >spy/gnuplot
chmod +x spy/gnuplot
PATH=$tmp/spy:$PATH
printf '%s\n' step,loss,valid_loss 1,5,6 2,4.5, 3,4,5 4,3.5, 5,3,4 6,2.5, >first.csv
printf '%s\n' step,loss,valid_loss 4,3.5, 5,3.000001,4 6,2.5, >rest.csv
printf '%s\n' step,loss 7,2.25 8,2 >after.csv
plots first.csv rest.csv after.csv --png -o resumed
picture resumed.png
check "the rows of all runs" grep -q '^5,3,4,3.000001,4,,$' script
check "the first run is thick" test "$(grep -c 'linewidth 7' script)" = 2
check "the step of the resume" test "$(sed -n 's/.*resumed at.nstep \([0-9]*\)".*/\1/p' script | sort -u)" = 3
check "the differences" test "$(grep -o 'column([0-9]*) - column([0-9]*)' script | tr '\n' ' ')" = \
	"column(4) - column(2) column(5) - column(3) "
# Bit-identical curves, and another tag than the loss.
plots first.csv first.csv rest.csv --tag valid/loss --png -o same
check "a run from the start resumes none" test "$(grep -o 'column([0-9]*) - column([0-9]*)' script)" = \
	"column(4) - column(2)"
plots first.csv first.csv after.csv --png -o apart
check "no common steps: one panel" test "$(grep -c -e multiplot -e resumed script)" = 0

# Names of runs.

# shellcheck disable=SC2016 # not to be expanded is the point
for name in "it's" '$(touch gotcha)' '`touch gotcha`' 'a"b\' '-o' '%s{Times}@x_1' $'a\nb'; do
	mkdir -p "odd/$name"
	cp "runs/$run/metrics.csv" "odd/$name/"
done
plots odd/* -o odd
picture odd.png
check "a table for each" test "$(find . -name 'odd-*.csv' -print0 | tr -dc '\0' | wc -c)" = 7
check "nothing was executed" test ! -e gotcha

# Two runs have the same name.
mkdir -p again
cp -r "runs/$run" again/
plots "runs/$run" "again/$run" -o twice
cmp -s "twice-$run.csv" "twice-$run-2.csv" || fail "no second table of the same name"

# Damaged logs.

mkdir cut bad
head -c -5 "$events/simple/events.out.tfevents.1.host" >cut/events.out.tfevents.1
ucplot cut --csv -o cut >said 2>&1 || fail "cut: $(cat said)"
check "a cut event file is reported" grep -q '^ucplot: cut/.*: ends within the record' said
table cut-cut.csv step,loss,valid_loss 1,5, 2,4.5,5.5 3,9, 4,9,10
sed 's/valid/vapid/' "$events/tensor/events.out.tfevents.1.host" >bad/events.out.tfevents.1
ucplot bad --csv -o bad >said 2>&1 || fail "bad: $(cat said)"
check "a damaged event file is reported" grep -q 'record at byte .*wrong checksum' said
table bad-bad.csv step,loss,valid_loss 1,5,

mkdir empty
refuses 1 'empty: has neither metrics.csv nor event files' empty
refuses 1 'none: No such file' none
refuses 1 'runs.*: has neither' runs
: >void.csv
refuses 1 'void.csv: is empty' void.csv
echo loss,accuracy >nostep.csv
refuses 1 'nostep.csv: the header has no column "step"' nostep.csv
printf '%s\n' step,loss 1,5 2,many >word.csv
refuses 1 "word.csv: line 3: 'many' is not a number" word.csv
printf '%s\n' step,loss one,5 >nonumber.csv
refuses 1 'nonumber.csv: line 2: the step is not a number' nonumber.csv
refuses 1 'has no values of train/accuracy' "$events/simple" --tag train/accuracy
refuses 1 'nowhere/x-tensor.csv: cannot create' "$events/tensor" -o nowhere/x
refuses 1 'nowhere/x.png.tmp: cannot create' "$events/tensor" -o nowhere/x --png

# Usage errors.

refuses 2 'no RUN'
refuses 2 '--frob: unknown option' --frob x
refuses 2 '--tag: needs a value' x --tag
check "--help" grep -q '^usage: ucplot' <(ucplot --help)
check "--version" grep -q '^ucplot [0-9]' <(ucplot --version)

# Without gnuplot, tables are still written.
ucplot=$(command -v ucplot)
mkdir nothing
PATH=$tmp/nothing "$ucplot" "$events/tensor" -o bare >said 2>&1
check "no gnuplot: exit status" test $? = 1
check "no gnuplot: is reported" grep -q '^ucplot: gnuplot.*not installed' said
check "no gnuplot: no picture" test ! -e bare.png -a ! -e bare.png.tmp
table bare-tensor.csv step,loss,valid_loss 1,5, 2,4.5,5.5
finish
