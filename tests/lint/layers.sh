#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Which file may include which.  An allow list, so that a new dependency is a
# decision and not an accident:
#
#   ckpt/  only ckpt/, and there only what stands above it in ckpt/local.mk
#   fs/    ckpt/ and fs/
#   gpu/   ckpt/ and gpu/
#
# and the headers of FUSE belong to fs/ alone, those of CUDA and MPI to gpu/.
set -u
cd "${top_srcdir:-$(dirname "$0")/../..}" || exit 1

files=
for dir in ckpt fs gpu; do
	for f in "$dir"/*.[ch] "$dir"/*/*.[ch] "$dir"/*/*.cu "$dir"/*/*.cuh; do
		if [ -f "$f" ]; then
			files="$files $f"
		fi
	done
done

# One pass: first the order of ckpt/local.mk, then every include of every file.
# shellcheck disable=SC2086 # our own file names: no blanks
exec awk '
function complain(text)
{
	printf "%s:%d: %s\n", FILENAME, FNR, text
	bad++
}

FILENAME == "ckpt/local.mk" {
	line = $0
	while (match(line, /%D%\/[A-Za-z0-9_\/]+\.[ch]/)) {
		place["ckpt/" substr(line, RSTART + 4, RLENGTH - 4)] = ++places
		line = substr(line, RSTART + RLENGTH)
	}
	next
}

FNR == 1 {
	split(FILENAME, part, "/")
	dir = part[1]
	checked++
	if (dir == "ckpt" && !(FILENAME in place))
		complain("not listed in ckpt/local.mk")
}

!/^[ \t]*#[ \t]*include/ { next }

/#[ \t]*include[ \t]*"/ {
	split($0, part, "\"")
	header = part[2]
	if (header !~ /^(ckpt|fs|gpu)\//)
		complain("\"" header "\": write the directory too")
	else if (index(header, "ckpt/") != 1 && index(header, dir "/") != 1)
		complain(dir "/ may not include \"" header "\"")
	else if (dir == "ckpt" && !(header in place))
		complain("\"" header "\" is not listed in ckpt/local.mk")
	else if (dir == "ckpt" && FILENAME in place &&
		 place[header] > place[FILENAME])
		complain("\"" header "\" stands below it in ckpt/local.mk")
	next
}

{
	header = $0
	sub(/^[^<]*</, "", header)
	sub(/>.*/, "", header)
	if (dir != "fs" && header ~ /^fuse/)
		complain(dir "/ may not include <" header ">")
	if (dir != "gpu" && header ~ /^(cuda|cublas|cudnn|curand|cufile|nccl|mpi)/)
		complain(dir "/ may not include <" header ">")
}

END {
	printf "%d files looked at, %d complaints\n", checked, bad
	exit bad || !checked
}
' ckpt/local.mk $files
