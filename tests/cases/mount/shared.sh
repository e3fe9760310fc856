#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A mount that root shares with everyone (allow_other): no user can read files through it that the
# user could not read otherwise.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
require setpriv
[ "$(id -u)" = 0 ] || skip "only root can become other users"

run=$tmp/run
name=dsuc_gpt2_z3_offload_dp4
tag=$(tag_of $name)
view=$tmp/mnt/${tag}_universal
param=$view/zero/transformer.wte.weight/fp32.pt
chmod 755 "$tmp"

# One user that owns nothing, and the run's owner.
stranger=65533
owner=65532
as() { setpriv --reuid="$1" --regid="$1" --clear-groups "${@:2}"; }
reads() { as "$1" head -c 1 "$2" >/dev/null 2>&1; }
lacks() { ! reads "$@"; }

fresh_run() {
	rm -rf "$run"
	cp -r "$good/$name" "$run"
	chmod -R u=rwX,go=rX "$run"
	chown -R "$owner:$owner" "$run"
}

shared() {
	mount_fg "$1" -o "allow_other${2:+,$2}" || finish
}

secret=$tmp/secret
echo "secret" >"$secret"
chmod 600 "$secret"
echo "{}" >"$tmp/elsewhere.json"
chmod 644 "$tmp/elsewhere.json"

# Everyone can read files that everyone may read.
fresh_run
shared "$run"
check "an open run is open" reads $stranger "$param"
check "its files keep their owner" test "$(stat -c %u "$param")" = "$owner"
check "so does the view" test "$(stat -c %u:%a "$view")" = "$owner:755"
unmount

# Only its owner may read the shard.
fresh_run
chmod 600 "$run/$tag"/*rank_1*optim_states.pt
shared "$run"
check "what is not readable is not read" lacks $stranger "$param"
check "the owner reads it" reads $owner "$param"
unmount

# A pack whose files have their own modes.
fresh_run
chmod 600 "$run/$tag"/*optim_states.pt
ucckpt pack "$run/$tag" >/dev/null || fail pack
rm -r "${run:?}/$tag"
check "a pack of private files is private" test "$(stat -c %a "$run/$tag.ucpack")" = 600
chmod 644 "$run/$tag.ucpack"
chown $owner:$owner "$run/$tag.ucpack"
shared "$run"
check "an opened pack keeps its private files private" lacks $stranger "$param"
check "its owner reads them" reads $owner "$param"
check "what everyone could read is open" reads $stranger "$view/zero_pp_rank_0_mp_rank_00_model_states.pt"
unmount
chmod 600 "$run/$tag.ucpack"
shared "$run"
check "a private pack is private" lacks $stranger "$view/zero_pp_rank_0_mp_rank_00_model_states.pt"
unmount

# Links lead out of the source.
fresh_run
ln -sf "$secret" "$run/$tag/config.json"
ln -sf "$tmp/elsewhere.json" "$run/tokenizer.json"
shared "$run"
check "a linked configuration is not shown" lacks 0 "$tmp/mnt/${tag}_hf/config.json"
check "nor a linked tokenizer" lacks 0 "$tmp/mnt/${tag}_hf/tokenizer.json"
check "the weights beside them are" reads $stranger "$tmp/mnt/${tag}_hf/model.safetensors"
unmount
shared "$run" follow_links
check "follow_links shows both" reads 0 "$tmp/mnt/${tag}_hf/config.json"
check "to those who may read them" reads $stranger "$tmp/mnt/${tag}_hf/tokenizer.json"
check "and to no others" lacks $stranger "$tmp/mnt/${tag}_hf/config.json"
unmount

# Above a run, files of another member of its owner's group are ignored.
fresh_run
mkdir "$tmp/project"
mv "$run" "$tmp/project/run"
width=$(ucckpt info "$tmp/project/run" | awk '/ ?transformer.ln_f.bias/ { print $2 }')
for whose in $stranger $owner; do
	echo "{\"hidden_size\": $width}" >"$tmp/project/config.json"
	echo "{}" >"$tmp/project/tokenizer.json"
	chown "$whose" "$tmp/project/config.json"
	chown $stranger "$tmp/project/tokenizer.json"
	mount_fg "$tmp/project/run" || finish
	case $whose in
	"$stranger") check "another's configuration is not shown" test ! -e "$mnt/${tag}_hf/config.json" ;;
	"$owner") check "the owner's is" test -e "$mnt/${tag}_hf/config.json" ;;
	esac
	check "another's tokenizer is not shown" test ! -e "$mnt/${tag}_hf/tokenizer.json"
	unmount
done
mv "$tmp/project/run" "$run"

# With follow_links a user reads only files that the user could reach directly: the directories on
# the way to a link's target count, and those above the source.
closed=$tmp/closed
mkdir "$closed"
shard=$(cd "$run/$tag" && ls ./*rank_1_*optim_states.pt)
while read -r object mode way can; do
	fresh_run
	chmod "$mode" "$closed"
	chown "$owner:$owner" "$closed"
	mv "$run/$tag/$shard" "$closed/shard.pt"
	case $way in
	absolute) ln -s "$closed/shard.pt" "$run/$tag/$shard" ;;
	relative) ln -s "../../closed/shard.pt" "$run/$tag/$shard" ;;
	twice)
		ln -sfn "$closed" "$tmp/hop"
		ln -s "$tmp/hop/shard.pt" "$run/$tag/$shard"
		;;
	tag)
		mv "$closed/shard.pt" "$run/$tag/$shard"
		mv "$run/$tag" "$closed/$tag"
		ln -s "$closed/$tag" "$run/$tag"
		;;
	source)
		mv "$closed/shard.pt" "$run/$tag/$shard"
		mv "$run" "$closed/run"
		ln -s "$closed/run" "$run"
		;;
	esac
	shared "$run" follow_links
	check "$object ($mode, $way): a stranger $can it" "$can" $stranger "$param"
	check "$object ($mode, $way): its owner reads it" reads $owner "$param"
	unmount
	rm -rf "${closed:?}"/*
done <<-'END'
	shard 755 absolute reads
	shard 711 relative reads
	shard 700 absolute lacks
	shard 700 relative lacks
	shard 750 twice lacks
	tag 755 tag reads
	tag 700 tag lacks
	run 711 source reads
	run 700 source lacks
END

fresh_run
model=$(cd "$run/$tag" && ls ./*rank_0_*model_states.pt)
mv "$run/$tag/$model" "$tmp/model.pt"
chmod 600 "$tmp/model.pt"
ln -s "$tmp/model.pt" "$run/$tag/$model"
ucfs "$run" "$tmp/mnt" -o allow_other 2>"$tmp/out" && umount "$tmp/mnt"
check "a linked shard is refused by name" grep -q "$tag/.*model_states.pt: a symbolic link leads out of" "$tmp/out"

fresh_run
mv "$run/$tag" "$tmp/private"
chmod 700 "$tmp/private"
ln -s "$tmp/private" "$run/$tag"
cp -r "$good/$name/$tag" "$run/global_step9"
shared "$run"
check "a linked tag has no view" test ! -e "$view"
check "the others do" reads $stranger "$tmp/mnt/global_step9_universal/zero/transformer.wte.weight/fp32.pt"
unmount
rm -rf "$tmp/private"

weights=$tmp/weights
cp -r "$good/hfdir_gpt2_bf16_sharded" "$weights"
file=$(cd "$weights" && ls ./*.safetensors | head -n 1)
mv "$weights/$file" "$tmp/w.safetensors"
ln -s "$tmp/w.safetensors" "$weights/$file"
ucfs "$weights" "$tmp/mnt" -o allow_other 2>"$tmp/out" && umount "$tmp/mnt"
check "linked weights are refused" grep -q "a symbolic link leads out of" "$tmp/out"

# Links stay inside the source.
hub=$tmp/hub/models--org--gpt2
mkdir -p "$hub/snapshots/0123abcd" "$hub/blobs"
for f in "$good"/hfdir_gpt2_bf16_sharded/*; do
	[ -f "$f" ] || continue
	cp "$f" "$hub/blobs/$(basename "$f").blob"
	ln -s "../../blobs/$(basename "$f").blob" "$hub/snapshots/0123abcd/$(basename "$f")"
done
for closes in "" blobs snapshots .; do
	for links in "" follow_links; do
		chmod -R u=rwX,go=rX "$hub"
		[ -z "$closes" ] || chmod 700 "$hub/$closes"
		shared "$hub/snapshots/0123abcd" "$links"
		check "the hub's cache ${closes:+with a closed $closes }${links:+and $links }is ${closes:+not }served" \
			"$([ "$closes" ] && echo lacks || echo reads)" \
			$stranger "$tmp/mnt/zero/transformer.wte.weight/fp32.pt"
		unmount
	done
done

# Directories above the roots of a union count.
fresh_run
mkdir -p "$tmp/above/node1/$tag"
mv "$run/$tag/$shard" "$tmp/above/node1/$tag/"
for mode in 755 700; do
	for links in "" follow_links; do
		chmod $mode "$tmp/above"
		shared "{$run,$tmp/above/node1}" "$links"
		check "a union below a directory of mode $mode${links:+ with $links}" \
			"$([ $mode = 755 ] && echo reads || echo lacks)" $stranger "$param"
		unmount
	done
done
rm -rf "$tmp/above"

# Permissions of the files that a virtual file consists of.
fresh_run
chmod 600 "$run/$tag"/*rank_1_*optim_states.pt
shared "$run"
check "a shard that is closed closes what is made of it" lacks $stranger "$param"
check "its owner reads it" reads $owner "$param"
check "weights that are made of it are closed" lacks $stranger "$tmp/mnt/${tag}_hf/model.safetensors"
check "model states as they are stay open" reads $stranger "$view/zero_pp_rank_0_mp_rank_00_model_states.pt"
unmount

made=$tmp/made
mkdir "$made"
"$top_builddir/tests/programs/mkrun" "$made" 4 1000 || fail mkrun
chmod -R u=rwX,go=rX "$made"
chmod 600 "$made"/global_step4/*rank_1_*optim_states.pt
shared "$made"
first=$(ls "$tmp/mnt/global_step4_universal/zero" | grep block | head -n 1)
last=$(ls "$tmp/mnt/global_step4_universal/zero" | grep block | tail -n 1)
check "elements of an open shard are open" reads $stranger "$tmp/mnt/global_step4_universal/zero/$first/fp32.pt"
check "those of a closed one are not" lacks $stranger "$tmp/mnt/global_step4_universal/zero/$last/fp32.pt"
unmount

fresh_run
chmod 600 "$run/$tag"/*optim_states.pt
chown $stranger "$run/$tag"/*rank_1_*optim_states.pt
shared "$run"
check "shards of two owners are root's alone: one" lacks $owner "$param"
check "the other" lacks $stranger "$param"
check "root" reads 0 "$param"
unmount

fresh_run
chmod 700 "$run/$tag"
shared "$run"
check "a closed tag has a closed view" lacks $stranger "$param"
check "that its owner reads" reads $owner "$param"
unmount

fresh_run
chmod 700 "$tmp"
shared "$run"
check "what is out of reach stays so" lacks $stranger "$param"
check "and for the owner, too" lacks $owner "$param"
unmount
chmod 755 "$tmp"

if command -v setfacl >/dev/null && fresh_run &&
	setfacl -m "u:$stranger:---" "$run/$tag"/*rank_1_*optim_states.pt 2>/dev/null; then
	shared "$run"
	check "an ACL that shuts someone out does" lacks $stranger "$param"
	unmount
fi

# Swap a file while it is read.
fresh_run
mkdir "$run/dir" "$tmp/dir"
echo "public" >"$run/dir/file"
echo "secret" >"$tmp/dir/file"
chmod 644 "$run/dir/file"
chmod 600 "$tmp/dir/file"
chown -R $owner "$run/dir"
ln -s "$tmp/dir" "$run/link"
ln "$tmp/dir/file" "$run/dir/closed"
mkdir "$run/list" "$run/hidden"
touch "$run/list/shown" "$run/hidden/secret"
chmod 755 "$run/list"
chmod 700 "$run/hidden"
chown -R $owner "$run/list" "$run/hidden"
lists_nothing() { ! as $stranger ls "$1" >/dev/null 2>&1; }
shared "$run"
check "a directory is listed" grep -q shown <(as $stranger ls "$tmp/mnt/list")
check "a closed one is not" lists_nothing "$tmp/mnt/hidden"
check "a public file is read" grep -q public <(as $stranger cat "$tmp/mnt/dir/file")
(
	while [ ! -e "$tmp/stop" ]; do
		mv -T "$run/dir" "$run/was" && mv -T "$run/link" "$run/dir"
		mv -T "$run/dir" "$run/link" && mv -T "$run/was" "$run/dir"
		mv "$run/dir/file" "$run/dir/open" && mv "$run/dir/closed" "$run/dir/file"
		mv "$run/dir/file" "$run/dir/closed" && mv "$run/dir/open" "$run/dir/file"
		mv -T "$run/list" "$run/was" && mv -T "$run/hidden" "$run/list"
		mv -T "$run/list" "$run/hidden" && mv -T "$run/was" "$run/list"
	done 2>/dev/null
) &
swapper=$!
for _ in $(seq 300); do
	as $stranger cat "$tmp/mnt/dir/file" 2>/dev/null
	as $stranger ls "$tmp/mnt/list" 2>/dev/null
done >"$tmp/seen"
touch "$tmp/stop"
wait "$swapper"
check "a swap never wins" test "$(grep -c secret "$tmp/seen")" -eq 0
unmount

finish
