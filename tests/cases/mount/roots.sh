#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that is spread over several directories, such as the disks of the nodes that saved it, is
# served as one run.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

name=dsuc_gpt2_z3_offload_dp4
tag=$(tag_of $name)

# spread NAME: deal the files of a tag out to $tmp/n0, n1 and n2 in turn.  Directories below the
# tag (tensors on NVMe) go to n2.
spread() {
	local n=0
	rm -rf "$tmp"/n[012]
	mkdir -p "$tmp"/n{0,1,2}/"$tag"
	for f in "$good/$1/$tag"/*; do
		if [ -d "$f" ]; then
			cp -rp "$f" "$tmp/n2/$tag/"
		else
			cp -p "$f" "$tmp/n$((n++ % 3))/$tag/"
		fi
	done
	cp -p "$good/$1/latest" "$tmp/n2/"
}
roots=("$tmp/n0" "$tmp/n1" "$tmp/n2")
says() { grep -q -- "$1" "$tmp/out"; }

# Commands read it without a mount.
spread $name
ucckpt convert "$good/$name" "$tmp/whole" >/dev/null || fail "convert of the whole run"
check "convert reads all roots" ucckpt convert "${roots[@]}" "$tmp/spread" >/dev/null
check "and writes the same" diff -r "$tmp/whole" "$tmp/spread"
check "info finds no problem" ucckpt info --quick "${roots[@]}" >"$tmp/out"
check "and names the roots" says "{$tmp/n0,$tmp/n1,$tmp/n2}/$tag"
check "check reads all files" ucckpt check --data "${roots[@]}" >/dev/null
check "diff takes roots in braces" ucckpt diff "{$tmp/n0,$tmp/n1,$tmp/n2}" "$good/$name" >/dev/null

ucckpt check "$tmp/n0" "$tmp/n2" >"$tmp/out"
check "what is missing is named with the roots" \
	says "{$tmp/n0,$tmp/n2}/$tag/.*: the .* of data-parallel rank .* is missing"
ucckpt convert "$tmp/n0" "$tmp/n1" "$tmp/none" "$tmp/out1" 2>"$tmp/out" &&
	fail "a run with a root that lacks files was converted"
check "a root that is not there is named" says "^ucckpt: $tmp/none: "

# Two roots have the same file.
f=$(basename "$tmp/n0/$tag"/*_00_model_states.pt)
cp -p "$tmp/n0/$tag/$f" "$tmp/n1/$tag/"
check "a file may be in two roots" ucckpt check "${roots[@]}" >/dev/null
echo >>"$tmp/n1/$tag/$f"
ucckpt check "${roots[@]}" >"$tmp/out"
check "but not with two sizes" says "$tmp/n0/$tag/$f .* and $tmp/n1/$tag/$f .* are not the same file"
rm "$tmp/n1/$tag/$f"

# Roots contain packs.
if ucckpt pack "$good/$name/$tag" "$tmp/all.ucpack" >/dev/null 2>&1; then
	mkdir "$tmp/packed" "$tmp/empty"
	cp "$tmp/all.ucpack" "$tmp/packed/$tag.ucpack"
	check "a root may hold the tag packed" ucckpt diff "{$tmp/empty,$tmp/packed}" "$good/$name" >/dev/null
	check "beside roots that hold files of it" ucckpt diff "{$tmp/n0,$tmp/packed}" "$good/$name" >/dev/null
fi

# Through a mount.
require_fuse
for n in $name z3_nvme_dp2; do
	tag=$(tag_of $n)
	spread $n
	rm -rf "$tmp/whole"
	ucckpt convert "$good/$n" "$tmp/whole" >/dev/null || fail "convert of $n"
	mkdir -p "$tmp/mnt"
	"${default_signals[@]}" ucfs "${roots[@]}" "$tmp/mnt" -f 2>"$tmp/log" &
	server=$!
	for _ in $(seq 200); do
		mountpoint -q "$tmp/mnt" && break
		sleep 0.05
	done
	check "$n: the view is that of the whole run" diff -r "$tmp/whole" "$tmp/mnt/${tag}_universal"
	check "$n: so are the tag's own files" diff -r "$good/$n/$tag" "$tmp/mnt/$tag"
	check "$n: and latest" cmp "$good/$n/latest" "$tmp/mnt/latest"
	check "$n: the names are those of the run, once each" test \
		"$(cd "$tmp/mnt/$tag" && ls)" = "$(cd "$good/$n/$tag" && ls)"
	f=$(find "$tmp/mnt/${tag}_universal" -name fp32.pt | head -n 1)
	ucckpt extents "$f" >"$tmp/out"
	check "$n: extents tell the paths in the roots" says "$tmp/n[012]/$tag/"
	check "$n: and none of the union" test "$(grep -c '{' "$tmp/out")" = 0
	unmount
done
mkdir -p "$tmp/n0/inside"
ucfs "$tmp/n1" "$tmp/n0" "$tmp/n0/inside" 2>"$tmp/out" && fail "mounted inside of a root"
check "a mount point is inside of no root" says "is inside the source $tmp/n0"

# In shared mounts each root is confined.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	tag=$(tag_of $name)
	spread $name
	chmod 755 "$tmp" && chmod -R u=rwX,go=rX "$tmp"/n[012]
	as() { setpriv --reuid=65533 --regid=65533 --clear-groups "$@"; }
	view=$tmp/mnt/${tag}_universal/zero/transformer.wte.weight/fp32.pt
	shared() {
		ucfs "${roots[@]}" "$tmp/mnt" -o allow_other 2>"$tmp/out"
	}
	shared
	check "open roots are open" as head -c 1 "$view" >/dev/null
	fusermount3 -u "$tmp/mnt"
	chmod 700 "$tmp/n1"
	shared
	as head -c 1 "$view" >/dev/null 2>&1 && fail "one root is shut, and its files are not"
	as ls "$tmp/mnt" >/dev/null 2>&1 && fail "one root is shut, and the mount is not"
	fusermount3 -u "$tmp/mnt"
	chmod 755 "$tmp/n1"
	f=$(cd "$tmp/n1/$tag" && find . -name "*_optim_states.pt" -printf "%f\n" -quit)
	mkdir "$tmp/n2/elsewhere"
	mv "$tmp/n1/$tag/$f" "$tmp/n2/elsewhere/shard"
	ln -s ../../n2/elsewhere/shard "$tmp/n1/$tag/$f"
	shared && fusermount3 -u "$tmp/mnt"
	check "no link leads from root to root" says "a symbolic link leads out of $tmp/n1"
fi
finish
