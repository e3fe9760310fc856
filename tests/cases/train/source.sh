#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# uctrain resumes from all sources of ucfs: several directories, and servers.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/../remote/remote_lib.sh"
require_train
PATH=$PATH:/usr/sbin

f=("${tiny[@]}" --train_batch_size 8 --deterministic)
train 2 near "${f[@]}" --steps 4 --checkpoint_dir "$tmp/run" --checkpoint_interval 2
mkdir "$tmp/www"
cp -r "$tmp/run" "$tmp/www/run"
rm -r "$tmp/www/run/global_step4"
echo global_step2 >"$tmp/www/run/latest"
check "convert" ucckpt convert "$tmp/run/global_step2" "$tmp/www/run/tree" >/dev/null

# resume NAME FLAG...: train as if the run had not been interrupted.
resume() {
	train 2 "$@" "${f[@]}" --steps 4
	check "$1: the same training" within 0 "$(apart near "$1" 3)"
}
# refuse NAME TEXT FLAG...
refuse() {
	if try_train 2 "$1" "${f[@]}" --steps 4 "${@:3}"; then
		fail "$1: was accepted"
	fi
	check "$1: $2" grep -q -- "$2" "$tmp/$1.log"
}

for n in 0 1; do
	mkdir -p "$tmp/n$n/global_step2"
	cp "$tmp/run/global_step2"/*_rank_"$n"_*optim_states.pt "$tmp/n$n/global_step2"
done
cp "$tmp/run/global_step2/mp_rank_00_model_states.pt" "$tmp/n0/global_step2"
refuse half "n0/global_step2: the optimizer shard" --resume="$tmp/n0" \
	--checkpoint_tag global_step2
cp "$tmp/www/run/latest" "$tmp/n1"
resume roots --resume="{$tmp/n0,$tmp/n1}"
refuse gone "$tmp/n2" --resume="{$tmp/n0,$tmp/n1,$tmp/n2}"
echo >>"$tmp/n1/latest"
cp "$tmp/www/run/latest" "$tmp/n0"
refuse differs "latest" --resume="{$tmp/n0,$tmp/n1}"

if ! command -v nginx >/dev/null || ucckpt info http://127.0.0.1:1/ 2>&1 | grep -q 'without libcurl'; then
	echo "nothing was asked of servers: no nginx, or no libcurl"
	finish
fi
port=$(free_port)
echo "server { listen 127.0.0.1:$port; autoindex on;
	location /unlisted/ { alias $tmp/www/run/; autoindex off; } }" >"$tmp/servers.conf"
start_nginx "$port"
url=http://127.0.0.1:$port
resume shards --resume="$url/run"
resume tree --resume="$url/run/tree" --universal_checkpoint
(cd "$tmp/www/run" && find . -type f -printf '%P\n') >"$tmp/manifest"
resume manifest --resume="$url/unlisted/" --source_options "deadline=10,manifest=$tmp/manifest"
rm "$tmp/n0/latest" "$tmp/n1/latest"
mv "$tmp/n1" "$tmp/www/n1"
resume mixed --resume="{$tmp/n0,$url/n1}" --checkpoint_tag global_step2
refuse nothing "$url/none" --resume="$url/none"
refuse option "deadline=x: " --resume="$url/run" --source_options deadline=x
stop_server "$nginx"
refuse away "$url" --resume="$url/run" --source_options deadline=1
finish
