# What shells know about the programs' arguments.

bashcompdir = $(datadir)/bash-completion/completions
fishcompdir = $(datadir)/fish/vendor_completions.d
dist_bashcomp_DATA = %D%/ucckpt %D%/ucplot
dist_fishcomp_DATA = %D%/fish/ucckpt.fish %D%/fish/ucplot.fish
dist_zshcomp_DATA = %D%/zsh/_ucckpt %D%/zsh/_ucplot
if BUILD_FUSE
dist_bashcomp_DATA += %D%/ucfs
dist_fishcomp_DATA += %D%/fish/ucfs.fish
dist_zshcomp_DATA += %D%/zsh/_ucfs
endif
if BUILD_TRAIN
dist_bashcomp_DATA += %D%/uctrain
dist_fishcomp_DATA += %D%/fish/uctrain.fish
dist_zshcomp_DATA += %D%/zsh/_uctrain
endif
