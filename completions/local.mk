# What bash knows about the programs' arguments.

bashcompdir = $(datadir)/bash-completion/completions
dist_bashcomp_DATA = \
	%D%/ucckpt \
	%D%/ucfs \
	%D%/ucplot
if BUILD_TRAIN
dist_bashcomp_DATA += %D%/uctrain
endif
