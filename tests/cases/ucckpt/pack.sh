#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt pack writes a directory's files to one smaller file, whole or not at all;
# ucckpt unpack writes them back byte for byte.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# state DIR: print every name below it with mode, size, time to the nanosecond, digest.
state() {
	(cd "$1" && find . -printf '%P %M %T@\n' -type f -printf '%P %s\n' | sort &&
		find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

# ran STATUS ARGUMENT...: run ucckpt with its output in $tmp/said and $tmp/errors.
ran() {
	local want=$1
	shift
	ucckpt "$@" >"$tmp/said" 2>"$tmp/errors"
	local status=$?
	check "ucckpt $*: exit status (said: $(cat "$tmp/errors"))" test $status = "$want"
}

said() {
	grep -q -F -e "$1" "$tmp/said" "$tmp/errors" ||
		fail "not said: '$1', but: $(cat "$tmp/said" "$tmp/errors")"
}

# All good checkpoints are packed and unpacked.
mkdir "$tmp/good" "$tmp/back"
for digests in $(good_cases); do
	tag=${digests%.digests}/$(sed -n 's/^tag //p' "$digests")
	ls "$tag"/*_states.pt >/dev/null 2>&1 || continue
	name=$(basename "$digests" .digests)
	cp -a "$tag" "$tmp/good/$name"
done
state "$tmp/good" >"$tmp/was"
for tag in "$tmp/good"/*; do
	ran 0 pack "$tag/" -o "$tmp/tag.ucpack"
	ran 0 unpack "$tmp/tag.ucpack" -o "$tmp/back/${tag##*/}"
	rm "$tmp/tag.ucpack"
done
check "the originals are left alone" cmp "$tmp/was" <(state "$tmp/good")
touch -r "$tmp/good" "$tmp/back"
check "all unpacked as they were" cmp "$tmp/was" <(state "$tmp/back")
rm -rf "$tmp/good" "$tmp/back"

# Other kinds of directory contents.
mkdir -p "$tmp/odd/a/b" "$tmp/odd/empty"
: >"$tmp/odd/nothing"
head -c 300000 /dev/urandom >"$tmp/odd/a/noise"
head -c 300000 /dev/zero >"$tmp/odd/a/b/zeros"
printf 'PK\3\4 but no zip file' >"$tmp/odd/a.pt"
head -c 70000 /dev/urandom >"$tmp/odd/a/x.tensor.swp"
printf x >"$tmp/odd/a/$(printf 'w\303\266rd and blank')"
touch -d '1969-12-31 23:59:58.25 UTC' "$tmp/odd/nothing"
chmod 4751 "$tmp/odd/a.pt"
chmod 500 "$tmp/odd/a/b"
state "$tmp/odd" >"$tmp/was"
ran 0 pack "$tmp/odd/" --jobs 3 --output "$tmp/odd.pack"
said "odd.pack: 6 files"
ran 2 unpack "$tmp/odd.pack"
said "name the directory with -o"
ran 0 unpack --check "$tmp/odd.pack"
said "all as packed"
ran 0 unpack "$tmp/odd.pack" -o "$tmp/new/odd" -j 1
check "no set-user-ID bit" test "$(stat -c %a "$tmp/new/odd/a.pt")" = 751
chmod 4751 "$tmp/new/odd/a.pt"
size_in_manual=$(sed -n 's/^.It 12 Ta 4 Ta size of a decoded block: //p' "$top_srcdir/man/ucpack.5")
check "the manual has the size of blocks" test "$(od -An -tu4 -j12 -N4 "$tmp/odd.pack")" -eq "$size_in_manual"
check "names, permissions, times, content" cmp "$tmp/was" <(state "$tmp/new/odd")
ran 0 pack "$tmp/odd" -j 1 -o "$tmp/again.pack"
check "the same pack on any number of threads" cmp "$tmp/odd.pack" "$tmp/again.pack"

# mode_of_pack EXPECTED COMMAND: check the pack's mode after this change to an open directory.
open_dir=$tmp/readers/dir
mode_of_pack() {
	[ $reachable = yes ] || return
	rm -rf "$tmp/readers" "$tmp/readers.pack"
	mkdir -p "$open_dir/sub"
	echo a >"$open_dir/file"
	echo b >"$open_dir/sub/file"
	chmod -R u=rwX,go=rX "$tmp/readers"
	eval "$2" || return
	(umask "${3:-022}" && ucckpt pack "$open_dir" -o "$tmp/readers.pack" >/dev/null)
	check "mode of the pack after '$2'" test "$(stat -c %a "$tmp/readers.pack")" = "$1"
}

chmod 755 "$tmp"
reachable=yes
for ((up = ${#tmp}; up > 0; up--)); do
	[ "${tmp:up:1}" = / ] || continue
	[[ $(stat -L -c %A "${tmp:0:up}") == d????????[xt] ]] || reachable=no
done
[ $reachable = yes ] || echo "others cannot reach $tmp: modes of packs are not tested"
mode_of_pack 644 true
mode_of_pack 640 true 027
mode_of_pack 600 'chmod 600 "$open_dir/sub/file"'
mode_of_pack 640 'chmod 640 "$open_dir/file"'
mode_of_pack 604 'chmod 604 "$open_dir/file"'
mode_of_pack 600 'chmod 604 "$open_dir/file"; chmod 640 "$open_dir/sub/file"'
mode_of_pack 600 'chmod 700 "$open_dir"'
mode_of_pack 640 'chmod 750 "$open_dir/sub"'
mode_of_pack 600 'chmod 711 "$open_dir/sub"'
mode_of_pack 640 'chmod 751 "$open_dir/sub"'
mode_of_pack 600 'chmod 744 "$open_dir/sub"'
mode_of_pack 600 'chmod 700 "$tmp/readers"'
mode_of_pack 644 'chmod 711 "$tmp/readers"'
if [ "$(id -u)" = 0 ]; then
	mode_of_pack 644 'chgrp -R 65533 "$tmp/readers"'
	mode_of_pack 600 'chmod 640 "$open_dir/file"; chgrp 65533 "$open_dir/file"'
	mode_of_pack 600 'chmod 640 "$open_dir"/*file "$open_dir/sub/file"; chgrp 65533 "$open_dir/file"'
fi
if command -v setfacl >/dev/null && setfacl -m u:65533:--- "$tmp/odd/nothing" 2>/dev/null; then
	setfacl -b "$tmp/odd/nothing"
	mode_of_pack 600 'setfacl -m u:65533:--- "$open_dir/file"'
fi

# Existing output is not replaced, and a failure leaves nothing.
ran 1 pack "$tmp/odd" -o "$tmp/odd.pack"
said "odd.pack: exists"
ran 1 unpack "$tmp/odd.pack" -o "$tmp/new/odd"
said "exists and is not empty"
ran 1 pack "$tmp/none"
said "none: No such file or directory"
ran 1 unpack "$tmp/odd/a.pt" -o "$tmp/no"
said "a.pt: not a pack"
ln -s a.pt "$tmp/odd/link"
ran 1 pack "$tmp/odd" -o "$tmp/linked.pack"
said "link: neither a file nor a directory"
rm "$tmp/odd/link"
(ulimit -f 100 && ran 1 pack "$tmp/odd" -o "$tmp/large.pack"; [ "$failures" = 0 ]) ||
	fail "a limit on file sizes is an error"
said "large.pack: cannot write: File too large"
check "nothing is left of it" test -z "$(find "$tmp" -name '*large.pack*' -o -name '*linked.pack*')"
ran 2 pack
ran 2 pack a b
ran 2 pack "$tmp/odd" --jobs 0
ran 2 unpack --check -o x y

mkdir "$tmp/small"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=64k none "$tmp/small" 2>/dev/null; then
	ran 1 unpack "$tmp/odd.pack" -o "$tmp/small/odd"
	said "bytes to unpack; there is room"
	check "nothing is written where there is no room" test -z "$(ls -A "$tmp/small")"
	umount "$tmp/small"
else
	echo "not root: a full file system was not tried"
fi

# Damaged packs.
cp "$tmp/odd.pack" "$tmp/bad.pack"
flip "$tmp/bad.pack" 200000
ran 1 unpack "$tmp/bad.pack" -o "$tmp/no"
said "is damaged"
check "nothing is left of it" test ! -e "$tmp/no"
ran 1 unpack --check "$tmp/bad.pack"
said "a/noise: block "
head -c -1 "$tmp/odd.pack" >"$tmp/bad.pack"
ran 1 unpack --check "$tmp/bad.pack"
said "bytes instead of"

# Interrupt in the middle.
mkdir "$tmp/big"
head -c 40000000 /dev/urandom >"$tmp/big/noise"
state "$tmp/big" >"$tmp/was"
for signal in TERM KILL; do
	ucckpt pack "$tmp/big" -o "$tmp/ended.pack" >/dev/null 2>&1 &
	sleep 0.05
	kill -$signal $! 2>/dev/null
	wait $! 2>/dev/null
	if [ -e "$tmp/ended.pack" ]; then
		check "SIG$signal: what is there is whole" ucckpt unpack --check "$tmp/ended.pack" >/dev/null
		rm "$tmp/ended.pack"
	fi
	check "SIG$signal: the original is left alone" cmp "$tmp/was" <(state "$tmp/big")
	[ $signal = KILL ] ||
		check "SIG$signal: nothing is left" test -z "$(find "$tmp" -name '.ended.pack*')"
done
ran 0 pack "$tmp/big" -o "$tmp/ended.pack"
ran 0 unpack --check "$tmp/ended.pack"

finish
