#include "intarsia/rendezvous.h"

#include <gtest/gtest.h>

#include <map>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Variables = std::map<std::string, std::string>;

Rendezvous read(const Variables& set, Launcher launcher = Launcher::detect) {
  return read_rendezvous(
      [&set](const std::string& name) -> std::optional<std::string> {
        const auto found = set.find(name);
        if (found == set.end() || found->second.empty()) return std::nullopt;
        return found->second;
      },
      launcher);
}

void refuse(const Variables& set, std::initializer_list<std::string> parts) {
  expect_error<ValueError>([&set] { (void)read(set); }, parts);
}

/// `set` with one variable changed, or taken away when `value` is empty.
Variables but(Variables set, const std::string& name, const std::string& value = "") {
  set[name] = value;
  return set;
}

const Variables kPlain{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun{{"TORCHELASTIC_RUN_ID", "x"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "host"},
                          {"MASTER_PORT", "1234"}};
const Variables kMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"OMPI_MCA_ess_base_jobid", "2020081665"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                       {"SLURM_JOB_NODELIST", "n[03-05,9]"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_ID", "0"}};

TEST(Rendezvous, NothingSetIsAWorldOfOne) {
  const Rendezvous r = read({});
  EXPECT_EQ(r.launcher, Launcher::none);
  EXPECT_EQ(r.size, 1);
  EXPECT_EQ(r.to_string(), "rank 0 of 1 (local 0 of 1) by no launcher");
}

TEST(Rendezvous, ReadsAPlainEnvironment) {
  const Rendezvous r = read(kPlain);
  EXPECT_EQ(r.to_string(),
            "rank 1 of 4 (local 0 of 1) by a plain environment, store at 10.0.0.7:29500");
  EXPECT_TRUE(r.rank0_serves);
}

TEST(Rendezvous, ReadsTorchrun) {
  const Rendezvous r = read(kTorchrun);
  EXPECT_EQ(r.to_string(), "rank 3 of 4 (local 1 of 2) by torchrun, store at host:1234");
  EXPECT_FALSE(r.rank0_serves);
  EXPECT_EQ(r.attempt, "2");
}

TEST(Rendezvous, ReadsMpirunOnOneMachineWithoutMasterVariables) {
  const Rendezvous r = read(kMpi);
  EXPECT_EQ(r.launcher, Launcher::openmpi);
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.address, "127.0.0.1");
  EXPECT_GE(r.port, 20000);
  EXPECT_LT(r.port, 32000);
  EXPECT_EQ(read(but(kMpi, "MASTER_PORT", "4444")).port, 4444);
}

TEST(Rendezvous, ReadsTheJobOfALaterOpenMpi) {
  const Variables later =
      but(but(kMpi, "OMPI_MCA_ess_base_jobid"), "PMIX_NAMESPACE", "prterun-host-77@1");
  EXPECT_GE(read(later).port, 20000);
}

TEST(Rendezvous, MpirunOnSeveralMachinesNeedsTheAddress) {
  const Variables spread = but(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  refuse(spread, {"MASTER_ADDR is not set", "mpirun", "-x MASTER_ADDR"});
  EXPECT_EQ(read(but(spread, "MASTER_ADDR", "node1")).address, "node1");
}

TEST(Rendezvous, ReadsSlurm) {
  const Rendezvous r = read(kSlurm);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.size, 7);
  EXPECT_EQ(r.local_size, 2);
  EXPECT_EQ(r.address, "n03");
  EXPECT_NE(r.port, read(but(kSlurm, "SLURM_STEP_ID", "1")).port);
  EXPECT_EQ(read(but(kSlurm, "SLURM_STEP_NUM_TASKS", "6")).size, 6);
  EXPECT_EQ(read(but(kSlurm, "MASTER_ADDR", "other")).address, "other");
}

TEST(Rendezvous, AnSbatchScriptIsNotATaskOfSrun) {
  const Variables script = but(kSlurm, "SLURM_STEP_ID");
  EXPECT_EQ(read(script).launcher, Launcher::none);
  Variables plain_inside = script;
  plain_inside.insert(kPlain.begin(), kPlain.end());
  EXPECT_EQ(read(plain_inside).size, 4);
}

TEST(Rendezvous, NodeListsAndCounts) {
  EXPECT_EQ(first_host("localhost"), "localhost");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("n[3]"), "n3");
  EXPECT_EQ(first_host("n[03-07,9],m1"), "n03");
  EXPECT_EQ(first_host("n[1-4]-ib,x"), "n1-ib");
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("4", 1), std::nullopt);
  EXPECT_EQ(tasks_on_node("x", 0), std::nullopt);
}

TEST(Rendezvous, EveryMissingVariableIsNamed) {
  for (const char* name : {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    refuse(but(kPlain, name), {std::string(name) + " is not set", "RANK, WORLD_SIZE"});
  }
  refuse({{"WORLD_SIZE", "4"}}, {"RANK is not set, although WORLD_SIZE is"});
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    refuse(but(kTorchrun, name), {std::string(name) + " is not set", "torchrun"});
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    refuse(but(kMpi, name), {std::string(name) + " is not set", "mpirun"});
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID"}) {
    refuse(but(kSlurm, name), {std::string(name) + " is not set", "srun"});
  }
  refuse(but(kMpi, "OMPI_MCA_ess_base_jobid"), {"MASTER_PORT is not set"});
  refuse({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, {"PMI_SIZE=2", "MPICH", "RANK, WORLD_SIZE"});
  expect_error<ValueError>([] { (void)read({}, Launcher::slurm); }, {"SLURM_PROCID is not set"});
}

TEST(Rendezvous, MalformedValuesAreNamed) {
  refuse(but(kPlain, "RANK", "one"), {"RANK=\"one\"", "is not an integer"});
  refuse(but(kPlain, "RANK", "4"), {"rank 4", "size 4", "0..3"});
  refuse(but(kPlain, "RANK", "-1"), {"rank -1"});
  refuse(but(kPlain, "WORLD_SIZE", "0"), {"world size is 0"});
  refuse(but(kPlain, "MASTER_PORT", "70000"), {"MASTER_PORT=70000", "65535"});
}

TEST(Rendezvous, ContradictionsAreNamed) {
  Variables both = kMpi;
  both.insert(kPlain.begin(), kPlain.end());
  refuse(both,
         {"RANK=1 and WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "mpirun"});
  refuse(but(but(both, "WORLD_SIZE", "2"), "RANK", "0"), {"RANK=0", "OMPI_COMM_WORLD_RANK=1"});
  EXPECT_EQ(read(but(both, "WORLD_SIZE", "2")).rank, 1);  // they agree
  EXPECT_EQ(read(both, Launcher::plain).size, 4);         // the user has chosen
  EXPECT_EQ(read(both, Launcher::openmpi).size, 2);
  // One task of srun that starts its own processes says nothing about their world.
  Variables nested = kPlain;
  nested.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(read(nested).size, 4);
}

}  // namespace
}  // namespace intarsia
