/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list makes hostile files fail early.  Safety does not depend on it, because
 * nothing is ever called.  Only whole names of modules match: a user's own package
 * may be called code.models.
 */
#include "ckpt/pickle/denylist.h"

#include <string.h>

bool denylist_global(const char *module, const char *name)
{
	static const char *const modules[] = {
		"os",	     "posix",	"nt",	      "subprocess", "sys",
		"shutil",    "socket",	"runpy",      "importlib",  "pty",
		"ctypes",    "code",	"webbrowser", "commands",   "popen2",
		"pdb",	     "bdb",	"timeit",     "imp",	    "marshal",
		"pickle",    "_pickle", "cPickle",    "dill",	    "cloudpickle",
	};
	static const char *const builtins[] = {
		"eval",	 "exec",  "execfile",	"compile", "__import__",
		"open",	 "input", "breakpoint", "file",	   "reload",
		"apply",
	};

	for (size_t i = 0; i < sizeof(modules) / sizeof(*modules); i++)
		if (strcmp(module, modules[i]) == 0)
			return true;
	if (strcmp(module, "__builtin__") != 0 &&
	    strcmp(module, "builtins") != 0)
		return false;
	for (size_t i = 0; i < sizeof(builtins) / sizeof(*builtins); i++)
		if (strcmp(name, builtins[i]) == 0)
			return true;
	return false;
}
