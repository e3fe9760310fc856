# SPDX-License-Identifier: Apache-2.0
# The parts of the campaign, for tests/cases/lib.sh's $tmp, fail and mount_fg.  A part
# is a function that takes a seed; it fails the run if anything but the right bytes
# or an error comes of it, or something is left over.
#
#   part_convert part_check part_pack part_unpack part_save
#	one call of the program fails, which one and how the seed decides
#   part_mount part_ranks
#	one call in some of the server or of every rank fails
#   part_mutant
#	a structured mutant of a checkpoint is read in every way
#   part_kill_server part_kill_ranks part_replace
#	the server, or a rank that saves, is killed; shards are replaced under readers
#   part_mounts part_growth
#	many mounts, and one that serves for long

faults=$top_builddir/tests/faults/faults.so
sources=(z1_fp32_dp2 dsuc_gpt2_z3_offload_dp4 moe2_ep2_dp4_z1_bf16 meg_tp2_dp2_z1_bf16
	hf_trainer autotp2_z3_bf16_dp2)

# Total number of faults; a call that the seed chooses may not happen.
injected=0

# faulty WORDS PROGRAM ARG...: runs a program with faults; its exit status is in $rc,
# what it said in $tmp/said, and the faults are in $tmp/faults.
faulty() {
	rm -f "$tmp/faults"
	FAULTS=$1 FAULTS_ONLY=$2 FAULTS_LOG=$tmp/faults LD_PRELOAD=$faults \
		timeout 120 "${@:2}" >"$tmp/out" 2>"$tmp/said"
	rc=$?
	what="$2 ${3-}, seed $seed ($(sed '/^calls/d' "$tmp/faults" 2>/dev/null | head -n 3 | tr '\n' ';'))"
	injected=$((injected + $(grep -vc ^calls "$tmp/faults" 2>/dev/null)))
}

# calls NAME PROGRAM ARG...: set $words to the number of a command's calls, which is measured once
# for each NAME.
calls() {
	if [ ! -s "$tmp/calls.$1" ]; then
		faulty seed=0 "${@:2}"
		[ "$rc" -eq 0 ] || fail "$what without faults: $(cat "$tmp/said")"
		sed -n 's/^calls //p' "$tmp/faults" | tail -n 1 >"$tmp/calls.$1"
	fi
	words=$(cat "$tmp/calls.$1")
	[ -n "$words" ] || fail "$1: no calls"
}

# Print the tag directory that a seed chooses.
source_of() {
	name=${sources[$1 % ${#sources[@]}]}
	tag=$good/$name/$(tag_of "$name")
}

# Make the converted tag once, without a mount.
truth() {
	[ -d "$tmp/truth/$name" ] && return
	mkdir -p "$tmp/truth"
	ucckpt convert "$tag" "$tmp/truth/$name" >/dev/null 2>&1 || fail "convert $name"
	(cd "$tmp/truth/$name" && find . -type f | sort | xargs md5sum) >"$tmp/truth/$name.md5"
}

# Check that the program ended by itself, with a message if it failed.
ended() {
	[ "$rc" -eq 0 ] && return
	[ "$rc" -le 2 ] || fail "$what: exit status $rc: $(tail -n 3 "$tmp/said")"
	grep -qE "^($1|fuse): ." "$tmp/said" || grep -q "^problem: ." "$tmp/out" || fail "$what: no message: $(cat "$tmp/said")"
}

# Check that a directory is empty, or empty it.
nothing_left() {
	[ -z "$(ls -A "$1")" ] || fail "$what: left $(cd "$1" && find . | head -n 5 | tr '\n' ' '): $(cat "$tmp/said")"
	rm -rf "$1"
	mkdir "$1"
}

# If syncing the final name failed, the tree is still whole.
only_not_synced() {
	[ -e "$1" ] && grep -q "cannot sync" "$tmp/said"
}

part_convert() {
	seed=$1
	source_of "$seed"
	truth
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	calls "convert.$name" ucckpt convert "$tag" "$tmp/dir/first"
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	faulty "seed=$seed $words" ucckpt convert "$tag" "$tmp/dir/tree"
	ended ucckpt
	# The same command keeps complete files.
	if [ "$rc" -ne 0 ] && grep -qE "files are kept|keeps the complete files" "$tmp/said"; then
		ucckpt convert "$tag" "$tmp/dir/tree" >/dev/null 2>"$tmp/said"
		rc=$?
		[ "$rc" -eq 0 ] || fail "$what: does not go on: $(cat "$tmp/said")"
	fi
	if [ "$rc" -eq 0 ] || only_not_synced "$tmp/dir/tree"; then
		diff -r "$tmp/dir/tree" "$tmp/truth/$name" >/dev/null || fail "$what: other bytes"
		rm -rf "$tmp/dir/tree" "$tmp/dir/latest_universal"
	fi
	nothing_left "$tmp/dir"
}

# check never calls a damaged checkpoint whole.
part_check() {
	seed=$1
	source_of "$seed"
	calls "check.$name" ucckpt check --data "$tag"
	faulty "seed=$seed $words" ucckpt check --data "$tag"
	ended ucckpt
	if [ ! -d "$tmp/cut/$name" ]; then
		mkdir -p "$tmp/cut"
		cp -r "$tag" "$tmp/cut/$name"
		truncate -s -100 "$(find "$tmp/cut/$name" -name '*optim_states.pt' | sort | tail -n 1)"
		ucckpt check --data "$tmp/cut/$name" >/dev/null 2>&1 && fail "check: $name, cut, is whole"
	fi
	faulty "seed=$seed $words" ucckpt check --data "$tmp/cut/$name"
	[ "$rc" -ne 0 ] || fail "$what: a damaged checkpoint is whole"
	ended ucckpt
}

part_pack() {
	seed=$1
	source_of "$seed"
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	calls "pack.$name" ucckpt pack -o "$tmp/dir/first.ucpack" "$tag"
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	faulty "seed=$seed $words" ucckpt pack -o "$tmp/dir/a.ucpack" "$tag"
	ended ucckpt
	if [ "$rc" -eq 0 ] || only_not_synced "$tmp/dir/a.ucpack"; then
		ucckpt unpack -o "$tmp/dir/again" "$tmp/dir/a.ucpack" >/dev/null 2>&1 &&
			diff -r "$tmp/dir/again" "$tag" >/dev/null || fail "$what: other bytes"
		rm -rf "$tmp/dir/again" "$tmp/dir/a.ucpack"
	fi
	nothing_left "$tmp/dir"
}

part_unpack() {
	local pack

	seed=$1
	source_of "$seed"
	pack=$tmp/packs/$name.ucpack
	[ -e "$pack" ] || {
		mkdir -p "$tmp/packs"
		ucckpt pack -o "$pack" "$tag" >/dev/null 2>&1 || fail "pack $name"
	}
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	calls "unpack.$name" ucckpt unpack -o "$tmp/dir/first" "$pack"
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	faulty "seed=$seed $words" ucckpt unpack -o "$tmp/dir/a" "$pack"
	ended ucckpt
	if [ "$rc" -eq 0 ] || only_not_synced "$tmp/dir/a"; then
		diff -r "$tmp/dir/a" "$tag" >/dev/null || fail "$what: other bytes"
		rm -rf "$tmp/dir/a"
	fi
	nothing_left "$tmp/dir"
}

# Check that the tag named by `latest` is whole, and that only tags exist.
saved() {
	local left

	if [ -e "$1/latest" ]; then
		ucckpt check --data "$1/$(cat "$1/latest")" >"$tmp/checked" 2>&1 ||
			fail "$what: latest names a bad tag: $(tail -n 3 "$tmp/checked")"
	fi
	left=$(ls -A "$1" 2>/dev/null | grep -vE '^(latest|latest_universal|global_step[0-9]+|config.json|ds_config.json|zero_to_fp32.py)$')
	[ -z "$left" ] || fail "$what: left $left: $(tail -n 3 "$tmp/said")"
}

saving=(uctrain "${tiny[@]}" --train_batch_size 2 --steps 2 --checkpoint_interval 1)

part_save() {
	seed=$1
	rm -rf "$tmp/dir" "$tmp/first"
	calls save "${saving[@]}" --log_dir "$tmp/logs" --checkpoint_dir "$tmp/first"
	faulty "seed=$seed $words" "${saving[@]}" --log_dir "$tmp/logs" --checkpoint_dir "$tmp/dir"
	ended uctrain
	saved "$tmp/dir"
	rm -rf "$tmp/dir" "$tmp/first" "$tmp/logs"
}

part_ranks() {
	seed=$1
	rm -rf "$tmp/dir" "$tmp/faults"
	FAULTS="seed=$seed rate=$((50 + seed % 7 * 200))" FAULTS_ONLY=uctrain FAULTS_LOG=$tmp/faults \
		on_ranks 2 env LD_PRELOAD="$faults" "${saving[@]}" --log_dir "$tmp/logs" --checkpoint_dir "$tmp/dir" >"$tmp/said" 2>&1
	rc=$?
	what="two ranks, seed $seed"
	injected=$((injected + $(grep -vc ^calls "$tmp/faults" 2>/dev/null)))
	[ "$rc" -lt 124 ] || fail "$what: exit status $rc: $(tail -n 3 "$tmp/said")"
	saved "$tmp/dir"
	rm -rf "$tmp/dir" "$tmp/logs"
}

part_kill_ranks() {
	local run pids

	seed=$1
	what="a rank killed, seed $seed"
	rm -rf "$tmp/dir"
	on_ranks 2 "${saving[@]}" --steps 100000 --log_dir "$tmp/logs" --checkpoint_dir "$tmp/dir" >"$tmp/said" 2>&1 &
	run=$!
	for _ in $(seq 600); do
		[ -e "$tmp/dir/latest" ] && break
		sleep 0.05
	done
	sleep "0.$((seed * 37 % 100))"
	pids=$(pgrep -f "uctrain .*--checkpoint_dir $tmp/dir" | grep -vx "$run")
	# shellcheck disable=SC2086 # numbers
	kill -9 $(ps -o pid=,comm= -p "$(echo $pids | tr ' ' ',')" | awk '$2 == "uctrain" { print $1 }' | sort -R --random-source=<(yes "$seed") | head -n 1) 2>/dev/null
	wait "$run"
	[ -e "$tmp/dir/latest" ] && ucckpt check --data "$tmp/dir/$(cat "$tmp/dir/latest")" >"$tmp/checked" 2>&1 ||
		fail "$what: $(tail -n 3 "$tmp/checked")"
	# The next run resumes, and removes what the killed one left.
	on_ranks 2 "${saving[@]}" --steps "$(($(sed 's/.*step//' "$tmp/dir/latest") + 1))" --resume --log_dir "$tmp/logs" \
		--checkpoint_dir "$tmp/dir" >"$tmp/said" 2>&1 || fail "$what: $(tail -n 3 "$tmp/said")"
	saved "$tmp/dir"
	rm -rf "$tmp/dir" "$tmp/logs"
}

# readers N SUMS DIR: run N parallel readers; wrong bytes fail.
readers() {
	local n=$1 i pids=() bad=0

	for i in $(seq "$n"); do
		(cd "$3" 2>/dev/null && LC_ALL=C timeout 120 md5sum --quiet -c "$2" >"$tmp/read.$i" 2>/dev/null
			[ $? -ne 124 ] || echo "a reader waits: FAILED" >>"$tmp/read.$i") &
		pids+=($!)
	done
	wait "${pids[@]}"
	for i in $(seq "$n"); do
		grep 'FAILED$' "$tmp/read.$i" >"$tmp/wrong" || continue
		fail "$what: other bytes: $(head -n 3 "$tmp/wrong")"
		bad=1
	done
	rm -f "$tmp"/read.*
	return $bad
}

# Wait for a server that may refuse to mount.
mounted() {
	for _ in $(seq 400); do
		mountpoint -q "$tmp/mnt" && return 0
		kill -0 "$server" 2>/dev/null || return 1
		sleep 0.02
	done
	fail "$what: neither mounts nor ends"
	return 1
}

part_mount() {
	seed=$1
	source_of "$seed"
	truth
	mkdir -p "$tmp/mnt"
	rm -f "$tmp/faults"
	what="ucfs of $name, seed $seed"
	FAULTS="seed=$seed rate=$((20 + seed % 11 * 100))" FAULTS_ONLY=ucfs FAULTS_LOG=$tmp/faults \
		LD_PRELOAD=$faults ucfs "$tag" "$tmp/mnt" -f 2>"$tmp/log" &
	server=$!
	if mounted; then
		readers 4 "$tmp/truth/$name.md5" "$tmp/mnt"
		unmount
	else
		wait "$server"
		rc=$?
		server=
		cp "$tmp/log" "$tmp/said"
		ended ucfs
	fi
	injected=$((injected + $(grep -vc ^calls "$tmp/faults" 2>/dev/null)))
}

part_kill_server() {
	local reading

	seed=$1
	source_of "$seed"
	truth
	what="a server of $name killed, seed $seed"
	mount_fg "$tag" || return
	readers 8 "$tmp/truth/$name.md5" "$tmp/mnt" &
	reading=$!
	sleep "0.$((seed * 29 % 100))"
	kill -9 "$server"
	wait "$server" 2>/dev/null
	wait "$reading" || failures=$((failures + 1))
	server=
	fusermount3 -u "$tmp/mnt" || fail "$what: cannot unmount"
	mount_fg "$tag" || return
	readers 1 "$tmp/truth/$name.md5" "$tmp/mnt"
	unmount
}

# Two generations of a tag replace each other's files.
generations() {
	[ -d "$tmp/gen/global_step1" ] && return
	uctrain "${tiny[@]}" --train_batch_size 2 --steps 2 --checkpoint_interval 1 --log_dir "$tmp/logs" \
		--checkpoint_dir "$tmp/gen" >/dev/null 2>&1 || fail "uctrain"
	for i in 1 2; do
		ucckpt convert "$tmp/gen/global_step$i" "$tmp/gen.$i" >/dev/null 2>&1 || fail "convert"
		(cd "$tmp/gen.$i/zero" && find . -type f | sort | xargs md5sum | sed 's|^\([0-9a-f]*\)  |\1 |') >"$tmp/gen.$i.md5"
	done
	cat "$tmp"/gen.[12].md5 | sort -u >"$tmp/gen.md5"
}

part_replace() {
	local swapper pids=()

	seed=$1
	what="shards replaced, seed $seed"
	generations
	rm -rf "$tmp/live" "$tmp/stop"
	mkdir "$tmp/live"
	cp -r "$tmp/gen/global_step1" "$tmp/live/tag"
	mount_fg "$tmp/live/tag" || return
	(
		while [ ! -e "$tmp/stop" ]; do
			for i in 2 1; do
				for f in "$tmp/gen/global_step$i"/*; do
					cp "$f" "$tmp/live/new"
					mv "$tmp/live/new" "$tmp/live/tag/$(basename "$f")"
				done
			done
		done
	) &
	swapper=$!
	for i in $(seq 48); do
		(cd "$tmp/mnt/zero" && find . -type f | xargs md5sum 2>/dev/null | sed 's|^\([0-9a-f]*\)  |\1 |' >"$tmp/read.$i") &
		pids+=($!)
	done
	wait "${pids[@]}"
	touch "$tmp/stop"
	wait "$swapper"
	# Check that every checksum is of one generation.
	sort -u "$tmp"/read.* | comm -23 - "$tmp/gen.md5" >"$tmp/wrong"
	[ -s "$tmp/wrong" ] && fail "$what: bytes of neither generation: $(head -n 3 "$tmp/wrong")"
	rm -f "$tmp"/read.*
	unmount
}

part_mounts() {
	seed=$1
	source_of "$seed"
	truth
	what="mount $seed of many"
	mount_fg "$tag" || return
	readers 1 "$tmp/truth/$name.md5" "$tmp/mnt"
	unmount
}

# used: print descriptors and resident KiB of the server.
used() {
	echo "$(ls "/proc/$server/fd" | wc -l) $(awk '/^VmRSS/ { print $2 }' "/proc/$server/status")"
}

part_growth() {
	local i fds rss fds_now rss_now

	seed=$1
	source_of "$seed"
	truth
	what="growth of a server of $name"
	mount_fg "$tag" || return
	for i in $(seq 60); do
		readers 4 "$tmp/truth/$name.md5" "$tmp/mnt"
		[ "$i" -ne 10 ] || read -r fds rss < <(used)
	done
	read -r fds_now rss_now < <(used)
	[ "$fds_now" -le $((fds + 4)) ] || fail "$what: $fds descriptors become $fds_now"
	[ "$rss_now" -le $((rss + 8192)) ] || fail "$what: $rss KiB become $rss_now"
	unmount
}

# number N: print the seed's next number below N.
number() {
	rng=$(((rng * 1103515245 + 12345) % 2147483648))
	drawn=$((rng / 8 % $1))
}

# Change a checkpoint in $tmp/live/tag.
mutate() {
	local files f other size at

	mapfile -t files < <(find "$tmp/live/tag" -type f -name '*.pt' | sort)
	number ${#files[@]}
	f=${files[$drawn]}
	number ${#files[@]}
	other=${files[$drawn]}
	size=$(stat -c %s "$f")
	number "$size"
	at=$drawn
	number 9
	mutation="$drawn of $(basename "$f") at $at"
	case $drawn in
	0) truncate -s "$at" "$f" ;;
	1) rm "$f" ;;
	2) [ "$f" = "$other" ] || cp "$other" "$f" ;;
	3) cp "$f" "$tmp/live/was" && cat "$other" >"$f" && mv "$tmp/live/was" "$other" ;;
	4) dd if=/dev/zero of="$f" bs=1 seek="$at" count=64 conv=notrunc status=none ;;
	5) dd if="$other" of="$f" bs=64 seek=$((at / 64)) count=2 conv=notrunc status=none ;;
	6) rm "$f" && mkdir "$f" ;;
	7) rm "$f" && ln -s . "$f" ;;
	# Change a byte of the pickle, which comes first.
	*) for _ in 1 2 3; do
		number $((size < 4096 ? size : 4096))
		at=$drawn
		number 256
		# shellcheck disable=SC2059 # the byte is the format
		printf "\\$(printf %03o "$drawn")" | dd of="$f" bs=1 seek="$at" conv=notrunc status=none
	done ;;
	esac
}

part_mutant() {
	local to whole=no

	seed=$1
	rng=$((seed * 7919 + 17))
	number 3
	source_of "$((seed + drawn))"
	rm -rf "$tmp/live" "$tmp/dir"
	mkdir -p "$tmp/live" "$tmp/mnt" "$tmp/dir"
	cp -r "$tag" "$tmp/live/tag"
	chmod -R u+w "$tmp/live"
	mutate
	for command in "info --json" "check --data --json"; do
		# shellcheck disable=SC2086 # words
		timeout 60 ucckpt $command "$tmp/live/tag" >"$tmp/out" 2>"$tmp/said"
		rc=$?
		what="ucckpt $command of $name, mutant $seed ($mutation)"
		[ "$rc" -le 1 ] || fail "$what: exit status $rc: $(tail -n 3 "$tmp/said")"
		[ ! -s "$tmp/out" ] || python3 -m json.tool "$tmp/out" /dev/null 2>"$tmp/said" || fail "$what: $(cat "$tmp/said")"
		[ "$rc" -ne 0 ] || whole=yes
	done
	[ "$rc" -eq 0 ] || whole=no
	timeout 60 ucckpt convert "$tmp/live/tag" "$tmp/dir/tree" >"$tmp/out" 2>"$tmp/said"
	rc=$?
	what="ucckpt convert of $name, mutant $seed ($mutation)"
	ended ucckpt
	[ "$rc" -eq 0 ] || [ $whole = no ] || fail "$what: is whole, but $(cat "$tmp/said")"
	[ "$rc" -eq 0 ] && rm -rf "$tmp/dir/tree" "$tmp/dir/latest_universal"
	nothing_left "$tmp/dir"
	what="ucfs of $name, mutant $seed ($mutation)"
	ucfs "$tmp/live/tag" "$tmp/mnt" -f 2>"$tmp/log" &
	server=$!
	if mounted; then
		timeout 60 find "$tmp/mnt" -type f -exec cat {} + >/dev/null 2>&1
		[ $? -ne 124 ] || fail "$what: a reader waits"
		unmount
	else
		wait "$server"
		rc=$?
		server=
		cp "$tmp/log" "$tmp/said"
		ended ucfs
	fi
}
