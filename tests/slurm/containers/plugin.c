/* A stand-in for the plug-ins of srun and sbatch that know containers: pyxis (--container-...), the
 * Container Engine (--environment) and shifter (--image, --module).
 *
 * The image is a text file: `hide PATH` covers a folder of the host with an empty one, NAME=VALUE is
 * a variable that the image sets. As with pyxis, the image's value wins, but for the names given to
 * --container-env, and a mount whose source is missing fails the task.
 *
 * The declarations are those of slurm/spank.h, which not every machine with Slurm has.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct spank_handle *spank_t;
struct spank_option {
	char *name, *arginfo, *usage;
	int has_arg, val;
	int (*cb)(int val, const char *arg, int remote);
};
extern int spank_option_register(spank_t, struct spank_option *);
extern int spank_setenv(spank_t, const char *, const char *, int);
extern int spank_getenv(spank_t, const char *, char *, int);
extern int spank_remote(spank_t);
extern void slurm_error(const char *, ...);

const char plugin_name[] = "containers";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION;
const unsigned int spank_plugin_version = 1;

enum { IMAGE, MOUNTS, NAMES, HOME, EDF, SHIFTER, MODULE, OPTIONS };
static char *given[OPTIONS];

static int keep(int which, const char *text, int remote)
{
	(void)remote;
	free(given[which]);
	given[which] = strdup(text ? text : "");
	return 0;
}

static struct spank_option options[] = {
	{"container-image", "IMAGE", "image", 1, IMAGE, keep},
	{"container-mounts", "SRC:DST[:FLAGS],...", "mounts", 1, MOUNTS, keep},
	{"container-env", "NAME,...", "variables of the host that win", 1, NAMES, keep},
	{"no-container-mount-home", NULL, "no home", 0, HOME, keep},
	{"environment", "EDF", "environment definition file", 1, EDF, keep},
	{"image", "IMAGE", "shifter's image", 1, SHIFTER, keep},
	{"module", "MODULE,...", "shifter's modules", 1, MODULE, keep},
};

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (spank_option_register(sp, &options[i]) != 0)
			return -1;
	return 0;
}

/* Lines that this file writes are the only ones that are read: key="value", and mounts with two
 * spaces before them. */
static void read_edf(void)
{
	char line[4096], mounts[65536] = "", *end;
	FILE *file = fopen(given[EDF], "r");
	while (file && fgets(line, sizeof(line), file)) {
		if ((end = strrchr(line, '"')) != NULL)
			*end = 0;
		if (!strncmp(line, "base_environment=\"", 18))
			keep(IMAGE, line + 18, 1);
		else if (!strncmp(line, "image=\"", 7))
			keep(IMAGE, line + 7, 1);
		else if (!strncmp(line, "  \"", 3))
			strcat(strcat(mounts, *mounts ? "," : ""), line + 3);
	}
	if (file)
		fclose(file);
	keep(MOUNTS, mounts, 1);
}

static int is_named(const char *name)
{
	char *list = strdup(given[NAMES] ? given[NAMES] : ""), *left = list, *one;
	int found = 0;
	while ((one = strsep(&left, ",")) != NULL)
		found |= !strcmp(one, name);
	free(list);
	return found;
}

int slurm_spank_user_init(spank_t sp, int argc, char **argv)
{
	char line[4096], here[4096], *value;
	(void)argc, (void)argv;
	if (given[SHIFTER])
		spank_setenv(sp, "SHIFTER_IMAGE", given[SHIFTER], 1);
	if (given[EDF])
		read_edf();
	FILE *file = given[IMAGE] ? fopen(given[IMAGE], "r") : NULL;
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "hide ", 5) || !(value = strchr(line, '=')))
			continue;
		*value++ = 0;
		if (!is_named(line) || spank_getenv(sp, line, here, sizeof(here)) != 0)
			spank_setenv(sp, line, value, 1);
	}
	if (file)
		fclose(file);
	return 0;
}

static void make_folders(const char *path)
{
	char *copy = strdup(path);
	for (char *at = copy + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
		*at = 0;
		mkdir(copy, 0755);
	}
	mkdir(copy, 0755);
	free(copy);
}

static int show(char *text, int source)
{
	char from[64], *left = text;
	strsep(&left, ":");
	char *target = strsep(&left, ":");
	mode_t before = umask(0); /* the job's, which may be stricter */
	make_folders(target);
	umask(before);
	snprintf(from, sizeof(from), "/proc/self/fd/%d", source);
	if (mount(from, target, NULL, MS_BIND | MS_REC, NULL) != 0)
		return -1;
	if (left && !strcmp(left, "ro"))
		return mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL);
	return 0;
}

/* As root, in the process that becomes the task. */
int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv)
{
	char line[4096], *one, *mounts[256];
	int held[256], count = 0;
	(void)sp, (void)argc, (void)argv;
	if (!given[IMAGE])
		return 0;
	FILE *file = fopen(given[IMAGE], "r");
	if (!file) {
		slurm_error("containers: no image %s", given[IMAGE]);
		return -1;
	}
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		return -1;
	char *left = given[MOUNTS] ? strdup(given[MOUNTS]) : NULL;
	while ((one = strsep(&left, ",")) != NULL) {
		char *source = strndup(one, strcspn(one, ":"));
		mounts[count] = one;
		if ((held[count++] = open(source, O_PATH | O_CLOEXEC)) < 0) {
			slurm_error("containers: no mount source %s", source);
			return -1;
		}
	}
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "hide ", 5) && mount("tmpfs", line + 5, "tmpfs", 0, "mode=755") != 0)
			return -1;
	}
	fclose(file);
	for (int i = 0; i < count; i++)
		if (show(mounts[i], held[i]) != 0) {
			slurm_error("containers: cannot mount %s: %s", mounts[i], strerror(errno));
			return -1;
		}
	return chdir("/");
}
