# The rules of the house.
scripts += %D%/layers.sh %D%/headers.sh %D%/man_layouts.sh \
	%D%/examples.sh %D%/completions.sh %D%/dist.sh
# By hand: they make root file systems, or build everything again.
EXTRA_DIST += %D%/distros.sh %D%/packages.sh %D%/tsan.sh
