#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Mounts every checkpoint of tests/good that can be served, and reads its .pt files with several
# programs: torch.load in each of its ways, Python's zipfile, and unzip.  torch_load.py beside
# this file lists the requirements.
#
#     torch_load.sh [CASE...]
#
# Python is $UCFS_PYTHON, or else the first of python3 and /usr/bin/python3 that has torch (Debian's
# python3-torch will do).
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"

find_python()
{
	for python in ${UCFS_PYTHON:+"$UCFS_PYTHON"} python3 /usr/bin/python3; do
		if "$python" -c 'import torch' 2>/dev/null; then
			return 0
		fi
	done
	return 1
}

find_python || skip "no python3 with torch"
require_ucfs

mounts=$(mktemp -d) || exit 1
unmount_all()
{
	for m in "$mounts"/*/; do
		fusermount3 -u "$m" 2>/dev/null
		rmdir "$m"
	done
	rmdir "$mounts"
}
trap unmount_all EXIT
trap 'exit 1' HUP INT TERM

if [ $# -eq 0 ]; then
	# shellcheck disable=SC2046 # our own case names: no blanks
	set -- $(cd "$good" && grep -L '^refuse' ./*.digests |
		sed 's|^\./||; s|\.digests$||')
fi
for name; do
	mkdir "$mounts/$name" || exit 1
	rules=$(sed -n 's/^rules //p' "$good/$name.digests")
	ucfs ${rules:+-o "rules=$good/$rules"} "$good/$name" "$mounts/$name" || exit 1
done
"$python" "$here/torch_load.py" "$good" "$mounts"
