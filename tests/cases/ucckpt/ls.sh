#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt ls, cat and extract work on the tree of a mount without mounting it.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# run STATUS ARGUMENT...: run it with stdout in $tmp/out and stderr in $tmp/errors.
run() {
	local want=$1 status
	shift
	ucckpt "$@" >"$tmp/out" 2>"$tmp/errors"
	status=$?
	check "$*: exit status $status: $(cat "$tmp/errors")" test $status = "$want"
}

# fails WORDS ARGUMENT...
fails() {
	local words=$1
	shift
	run 1 "$@"
	check "$*: says '$words': $(cat "$tmp/errors")" grep -q "^ucckpt: .*$words" "$tmp/errors"
	check "$*: and no more" test "$(grep -vc 'warning: .* no config.json' "$tmp/errors")" = 1
	check "$*: nothing on stdout" test ! -s "$tmp/out"
}

run=$good/z1_tied_frozen_buffers_dp2

# Warnings about a view appear only when it is used.
run 0 ls "$run"
check "a listing has no warnings" test ! -s "$tmp/errors"

# Arguments (of $run) | listed names
while IFS='|' read -r options patterns listed; do
	read -r -a options <<<"$options"
	read -r -a patterns <<<"$patterns"
	run 0 "${options[@]}" ls "$run" "${patterns[@]}"
	check "ls ${options[*]} ${patterns[*]}" diff -u <(tr ' ' '\n' <<<"$listed") "$tmp/out"
done <<'END'
||global_step4/ global_step4_dcp/ global_step4_fp32/ global_step4_hf/ global_step4_universal/ latest latest_universal
-o ranks=3,2_z1,crc=zero|*_dp[0-9]*/mp_*|global_step4_dp2_z1/mp_rank_00_model_states.pt global_step4_dp3/mp_rank_00_model_states.pt
-o ranks=3||global_step4/ global_step4_dcp/ global_step4_dp3/ global_step4_fp32/ global_step4_hf/ global_step4_universal/ latest latest_universal
|latest latest*|latest latest_universal
|*_hf|global_step4_hf/model.safetensors
|/global_step4_hf/|global_step4_hf/model.safetensors
|global_step4_universal|global_step4_universal/mp_rank_00_model_states.pt global_step4_universal/zero/
|*/zero/?[um]be*/fp32.pt|global_step4_universal/zero/cube/fp32.pt global_step4_universal/zero/embed.weight/fp32.pt
|*/*/cube|global_step4_universal/zero/cube/exp_avg.pt global_step4_universal/zero/cube/exp_avg_sq.pt global_step4_universal/zero/cube/fp32.pt global_step4_universal/zero/cube/step.pt
|global_step4_dp1|global_step4_dp1/mp_rank_00_model_states.pt global_step4_dp1/zero_pp_rank_0_mp_rank_00_optim_states.pt
END
for pattern in none '*none' 'global*/cube' '*cube*' latest/more ../z1_fp32_dp2 '*_hf/../latest' .; do
	fails "${pattern//\*/.*}: No" ls "$run" "$pattern"
done
fails "none: " ls "$tmp/none"

# The newest tag of a run is read, others only when they are used.
mkdir "$tmp/many"
for i in 1 2 3; do cp -r "$good/dcp_fsdp2_dp2_fp32/ckpt" "$tmp/many/checkpoint-$i"; done
: >"$tmp/many/checkpoint-2/.metadata"
run 0 ls "$tmp/many"
check "older tags are listed by their names" test "$(grep -c '^checkpoint-[123]_' "$tmp/out")" = 12
run 0 ls "$tmp/many" checkpoint-1_hf
run 1 ls "$tmp/many" checkpoint-2_hf
check "and read then" grep -q "checkpoint-2/.metadata: " "$tmp/errors"

# Names identify tags; the newest usable one is read, and none twice.
faults=$top_builddir/tests/faults/faults.so
if [ "${sanitize:-no}" = no ] && LD_PRELOAD=$faults true 2>/dev/null; then
	for name in dcp_fsdp2_dp2_fp32 dcp_fsdp2_dp2_zstd dcp_fsdp2_dp2_filepertensor; do
		mkdir "$tmp/$name"
		for i in $(seq 16); do cp -r "$good/$name/ckpt" "$tmp/$name/checkpoint-$i"; done
		FAULTS=seed=0 FAULTS_ONLY=ucckpt FAULTS_LOG=$tmp/calls LD_PRELOAD=$faults \
			ucckpt ls "$tmp/$name" >/dev/null 2>&1
		calls=$(tail -n 1 "$tmp/calls")
		reads=${calls##* read=}
		check "$name: at most 40 reads: $calls" test "${reads%% *}" -le 40
		check "$name: and some" test "${reads%% *}" -ge 5
		rm -r "${tmp:?}/$name"
	done
fi

# The files of a view or run are those that convert writes, with their sizes.
mkdir "$tmp/packed"
cp "$good/z3_fp32_dp2/latest" "$tmp/packed"
ucckpt pack -o "$tmp/packed/global_step4.ucpack" "$good/z3_fp32_dp2/global_step4" >/dev/null || fail pack
mkdir -p "$tmp/n0" "$tmp/n1"
cp -r "$good/z2_fp32_dp2/global_step4" "$good/z2_fp32_dp2/latest" "$tmp/n0"
mkdir "$tmp/n1/global_step4"
mv "$tmp/n0/global_step4"/*rank_1_* "$tmp/n1/global_step4"
while read -r source to options; do
	read -r -a words <<<"${options//=/ }"
	rm -rf "$tmp/want" "$tmp/got"
	ucckpt convert --view "$to" ${words[0]:+"--${words[0]}" "${words[1]}"} "$source" "$tmp/want" >/dev/null 2>&1 ||
		fail "convert --view $to $source"
	view=global_step4_${to/zero/dp3}
	run 0 ${options:+-o "$options"} extract "$source" "$view" "$tmp/got"
	check "$source: $view" diff -r "$tmp/want" "$tmp/got/$view"
	check "$source: it says what was written" grep -q \
		"^$tmp/got: $(find "$tmp/want" -type f | wc -l) files, .* in .* s" "$tmp/out"
	check "$source: no more" test "$(ls -A "$tmp/got")" = "$view"
	mapfile -t dirs < <(cd "$tmp/got" && find "$view" -type d)
	run 0 ${options:+-o "$options"} ls -l "$source" "${dirs[@]}"
	check "$source: sizes and times" diff <(cd "$tmp/got" && find "$view" -type f -exec \
		ls -l --time-style='+%Y-%m-%d %H:%M' {} + | awk '{ print $5, $6, $7, $8 }' | LC_ALL=C sort -k 4) \
		<(awk '$1 != "-" { print $1, $2, $3, $4 }' "$tmp/out" | LC_ALL=C sort -k 4)
done <<END
$run universal
$run hf hf_dtype=bf16
$good/pp2_tp2_dp2_z1_bf16 fp32
$good/z1_fp32_dp2 zero ranks=3
$good/z1_fp32_dp2 dcp
$tmp/packed universal
{$tmp/n0,$tmp/n1} hf
END

# The root of a tag is its view; the root of Hugging Face weights is their tree.
run 0 -o view=hf extract "$run/global_step4" '*' "$tmp/view"
check "of a tag" cmp "$tmp/view/model.safetensors" <(ucckpt cat "$run" global_step4_hf/model.safetensors)

# Engines without tensor parallelism refuse AutoEP's record of it.
for file in z1/global_step3:mp_rank_00 z3/global_step3:zero_pp_rank_0_mp_rank_00; do
	folded=$good/folded_tp2_ep2_dp2_${file%:*} file=${file#*:}_model_states.pt
	check "$folded has the record" grep -aq folding "$folded/$file"
	ucckpt cat "${folded%/*}" "global_step3_universal/$file" >"$tmp/states" || fail "$folded"
	check "$folded: the tree has not" test "$(grep -ac folding "$tmp/states")" = 0
	check "and is all there" grep -aq ds_autoep_layers "$tmp/states"
done
run 0 extract "$good/hfdir_bin" 'zero/*/fp32.pt' "$tmp/weights"
check "of weights" test "$(cd "$tmp/weights" && sha256sum zero/*/fp32.pt)" = \
	"$(cd "$tmp/weights" && for f in zero/*/fp32.pt; do ucckpt cat "$good/hfdir_bin" "$f" | sha256sum |
		sed "s|-\$|$f|"; done)"

# Files of the run itself can be read, also through links.
cp -r "$run" "$tmp/links"
chmod -R u+w "$tmp/links"
ln -s latest "$tmp/links/newest"
ln -s nowhere "$tmp/links/dangling"
mkdir "$tmp/links/sub"
ln -s .. "$tmp/links/sub/loop"
ln -s ../latest "$tmp/links/sub/latest"
run 0 extract "$tmp/links" newest sub dangling "$tmp/linked"
check "files that links lead to" diff <(cd "$tmp/linked" && find . ! -type d | LC_ALL=C sort) - <<'END'
./newest
./sub/latest
END
check "others are named" test "$(cat "$tmp/errors")" = \
	"ucckpt: warning: dangling is left out: no file, nor a link to one"
run 0 ls "$tmp/links" sub 'sub/loop/late*t' dangling
check "directories behind links" diff "$tmp/out" - <<'END'
dangling
sub/latest
sub/loop/
sub/loop/latest
END

# ucckpt cat.
run 0 cat "$run" latest_universal
check "cat" test "$(cat "$tmp/out")" = global_step4_universal
fails "global_step4_hf: Is a directory" cat "$run" global_step4_hf
fails "none: No such file" cat "$run" none
if [ -e /dev/pts/ptmx ]; then
	script -qec "ucckpt cat '$run' latest" /dev/null >"$tmp/out"
	check "no terminal: $(cat "$tmp/out")" grep -q "^ucckpt: cat: standard output is a terminal" "$tmp/out"
else
	echo "note: what cat says to a terminal is not tried: there is none to be had"
fi
ucckpt cat "$run" global_step4_hf/model.safetensors >/dev/full 2>"$tmp/errors"
check "a full disk: exit status" test $? = 1
check "a full disk" grep -q "^ucckpt: cannot write to standard output" "$tmp/errors"

# If files exist they are left alone, and the command writes nothing.
mkdir "$tmp/there"
echo mine >"$tmp/there/latest"
fails "there/latest: .*File exists" extract "$run" '*_hf' latest "$tmp/there"
check "nothing is written" test "$(ls -A "$tmp/there") $(cat "$tmp/there/latest")" = "latest mine"
# A file of the same size is left alone, too.
ucckpt cat "$run" latest | tr a-z A-Z >"$tmp/there/latest"
fails "there/latest: .*File exists" extract "$run" '*_hf' latest "$tmp/there"
check "nothing is written" test "$(ls -A "$tmp/there")" = latest

# Files with the same bytes are kept, and a killed extraction is resumed with the others.  Its
# temporary files are removed, but not those of a running process.
run 0 extract "$run" '*_universal' "$tmp/whole"
cp -r "$tmp/whole" "$tmp/on"
zero=$tmp/on/global_step4_universal/zero
rm "$zero"/*/fp32.pt
inode=$(stat -c %i "$zero/optimizer_state.pt")
left=("$zero/.ucckpt.tmp-1-0" "$(dirname "$zero"/*/exp_avg.pt | head -n 1)/.ucckpt.tmp-99999999-7")
mine=("$zero/.ucckpt.tmp-1-00" "$zero/.ucckpt.tmp-1-0.txt" "$zero/.ucckpt.tmp-1-1")
touch "${left[@]}" "${mine[@]}"
exec 9>"$zero/.ucckpt.tmp-1-1"
flock 9
run 0 extract "$run" '*_universal' "$tmp/on"
exec 9>&-
check "it goes on: $(cat "$tmp/out")" grep -q ', of which [0-9]* were there, in' "$tmp/out"
check "what is complete is not written again" test "$(stat -c %i "$zero/optimizer_state.pt")" = "$inode"
check "what others have there stays" rm "${mine[@]}"
check "the same files, and nothing beside them" diff -r "$tmp/whole" "$tmp/on"

# Nothing is written outside the directory.
mkdir "$tmp/trap" "$tmp/outside"
ln -s ../outside "$tmp/trap/global_step4_hf"
fails "global_step4_hf/model.safetensors: cannot open its directory" extract "$run" '*_hf' "$tmp/trap"
check "nothing lies outside" test -z "$(ls -A "$tmp/outside")"
for pattern in none ../latest '*_hf/../latest'; do
	fails "${pattern//\*/.*}: No" extract "$run" "$pattern" "$tmp/nothing"
done
check "no directory is made in vain" test ! -e "$tmp/nothing"

# A file that cannot be written leaves nothing behind; files before it are whole.
(
	ulimit -f 4
	exec ucckpt extract "$run" '*_hf' '*_universal/mp*' "$tmp/limited"
) >"$tmp/out" 2>"$tmp/errors"
check "a file that is too large: exit status" test $? = 1
check "it says why" grep -q "^ucckpt: $tmp/limited/global_step4_universal/.*: cannot write: " "$tmp/errors"
check "no unfinished file" test "$(find "$tmp/limited" -type f)" = "$tmp/limited/global_step4_hf/model.safetensors"
cp -r "$run" "$tmp/cut"
chmod -R u+w "$tmp/cut"
truncate -s -500 "$tmp/cut/global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt"
touch -d "1 hour ago" "$tmp/cut/global_step4"/* # old files do not look like a running save, which a listing would hide
fails "zero_pp_rank_1_mp_rank_00_optim_states.pt: " extract "$tmp/cut" '*_universal' "$tmp/damaged"
check "no unfinished file" test -z "$(find "$tmp/damaged" -name '.*tmp*')"

# Interrupt in the middle of a long file.
cp -r "$run" "$tmp/long"
chmod -R u+w "$tmp/long"
truncate -s 8G "$tmp/long/long"
"${default_signals[@]}" ucckpt extract "$tmp/long" latest long "$tmp/interrupted" >"$tmp/out" 2>"$tmp/errors" &
pid=$!
for _ in $(seq 500); do
	# The file has no name yet, or a temporary one if the file system requires one.
	! find "/proc/$pid/fd" -lname "$tmp/interrupted/*" | grep -q . || break
	sleep 0.02
done
kill -INT $pid
wait $pid
check "interrupted: exit status 1" test $? = 1
check "it says so: $(cat "$tmp/errors")" grep -q \
	"^ucckpt: $tmp/interrupted: interrupted by Interrupt; files that are complete are left there" "$tmp/errors"
check "it was at work, and nothing unfinished is left" test "$(ls -A "$tmp/interrupted")" = latest

for line in "ls" "cat $run" "extract $run latest" "-o nonsense ls $run" "-o ranks=0 ls $run"; do
	# shellcheck disable=SC2086 # words
	run 2 $line
done
finish
