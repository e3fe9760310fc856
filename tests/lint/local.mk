# The rules of the house.  They look at sources, and at programs from outside: in a
# build with sanitizers they would find the same.
lint = %D%/layers.sh %D%/headers.sh %D%/layouts.sh \
	%D%/examples.sh %D%/completions.sh %D%/manuals.sh %D%/dist.sh %D%/tmpdirs.sh \
	%D%/symbols.sh %D%/reproducible.sh %D%/python_types.sh
if !ENABLE_SANITIZE
scripts += $(lint)
endif
EXTRA_DIST += $(lint) %D%/tmpdirs.bad
# By hand: they make root file systems, or build everything again.
EXTRA_DIST += %D%/distros.sh %D%/packages.sh %D%/packages.py %D%/tsan.sh
