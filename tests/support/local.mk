# What several tests share: the reference checkpoints, comparisons, tables.
# Uses make, ckpt/ and gpu/.
tests_libmk_a_SOURCES += \
	%D%/unit.h %D%/context.h %D%/random.h %D%/sampled.h \
	%D%/realfiles.h %D%/realfiles.c \
	%D%/goodcase.h %D%/goodcase.c \
	%D%/walk.h %D%/walk.c
hostbackend = %D%/hostbackend.h %D%/hostbackend.c
changed = %D%/changed.h %D%/changed.c
apart = %D%/apart.h %D%/apart.c $(hostbackend)
commandline = %D%/commandline.h %D%/commandline.c
made = %D%/made.h %D%/made.c
numbers = %D%/numbers.h %D%/numbers.c
openfiles = %D%/openfiles.h
ops = %D%/ops.h %D%/ops.c
recut = %D%/recut.h %D%/recut.c
rules = %D%/rules.h %D%/rules.c
sides = %D%/sides.h %D%/sides.c
slices = %D%/slices.h %D%/slices.c
update = %D%/update.h
whole = %D%/whole.h %D%/whole.c
