#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# For a source with an unknown scheme every tool lists the schemes it knows; no message shows the
# secrets of a URL, even a mistyped one.  No server is contacted.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir "$tmp/mnt"
# Run each tool with a source that it must refuse.
tools=('ucckpt info' 'ucckpt ls' 'ucckpt check' "ucckpt diff $good/z1_fp32_dp2" "ucckpt convert --output_folder $tmp/out --input_folder")
[ ! -x "$top_builddir/ucfs" ] || tools+=("ucfs_on")
[ ! -x "$top_builddir/uctrain" ] || tools+=("train_from")
# shellcheck disable=SC2317 # called by name
ucfs_on() { ucfs "$1" "$tmp/mnt"; }
# shellcheck disable=SC2317
train_from() { uctrain --steps 1 --resume="$1"; }

# refuses TOOL SOURCE: it fails with one message, in $tmp/said.
refuses() {
	# shellcheck disable=SC2086 # a command with its first arguments
	if $1 "$2" >"$tmp/said" 2>&1; then
		fail "$1 $2 succeeds"
	fi
}

for tool in "${tools[@]}"; do
	for scheme in gs ftp hf az file abfss+x; do
		refuses "$tool" "$scheme://bucket/run"
		check "$tool: $scheme://" grep -q \
			"$scheme://: unsupported scheme; .*directories, or http://, https:// or s3://" "$tmp/said"
	done
	while read -r url; do
		refuses "$tool" "$url"
		grep secret7 "$tmp/said" && fail "$tool $url: shows a secret"
		check "$tool $url: says something" test -s "$tmp/said"
	done <<-END
		gs://reader:secret7@h/run
		gs://secret7@h/run?token=secret7
		htp://reader:secret7@h/run
		htps://h/run?sig=secret7&more=secret7
		http:/reader:secret7@h/run
		http//reader:secret7@h/run
		reader:secret7@h/run
		h/run?sig=secret7
		s3://reader:secret7@bucket/run
		s3://bucket/run?sig=secret7
		http://reader:secret7@/run
		http://reader:secret7@h/a/../b?sig=secret7
		http://reader:1secret7/secret7@h:x/run
		http://reader:%00secret7@h/run
		{gs://reader:secret7@h/run,/}
		{/,http:/h/run?sig=secret7}
	END
done

# URLs in other places than the source.
quiet() {
	"$@" >"$tmp/said" 2>&1 && fail "$* succeeds"
	check "$*: says something" test -s "$tmp/said"
	grep secret7 "$tmp/said" && fail "$*: shows a secret"
}
url='http://reader:secret7@h/run?sig=secret7'
quiet ucckpt "$url"
quiet ucckpt -o "s3_endpoint=htp://reader:secret7@h" info .
quiet ucckpt -o "manifest=$url,$url" info .
quiet ucckpt info "$url" "$url" "$url"
quiet ucckpt convert . "$tmp/out" "$url"
quiet ucckpt convert "--frobnicate=$url" . "$tmp/out"
if [ -x "$top_builddir/ucfs" ]; then
	quiet ucfs . "$url"
	quiet ucfs . "$tmp/mnt" -o "frobnicate=$url"
	quiet ucfs . "$tmp/mnt" -o "s3_endpoint=htp://reader:secret7@h"
	quiet ucfs "--frobnicate=$url"
fi

# Keys stay hidden.
AWS_ACCESS_KEY_ID=K AWS_SECRET_ACCESS_KEY=S AWS_SESSION_TOKEN=$(head -c 5000 /dev/zero | tr '\0' t) \
	ucckpt info s3://bucket/run >"$tmp/said" 2>&1
check "a token that is too long to sign: exit status 1" test $? = 1
check "and the reason" test "$(cat "$tmp/said")" = \
	"ucckpt: s3://bucket/run: a key or a session's token is too long to sign with"

# An existing path is not taken for a URL.
cd "$tmp" || exit 1
mkdir -p gs:
cp -r "$good/z1_fp32_dp2" gs:/run
check "a directory may have such a name" ucckpt info gs://run >/dev/null
finish
