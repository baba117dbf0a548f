"""The contracts of BenchFlow: Protocols, data models and errors.

A provider needs this package alone; `benchflow_testing` checks it.

The names below are loaded on first use: a program imports only the modules that it uses.
"""

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from ._model import Model as Model, RareModel as RareModel
    from .agent import (
        Activity as Activity,
        ActivityHandler as ActivityHandler,
        Agent as Agent,
        AgentCapabilities as AgentCapabilities,
        AgentNeeds as AgentNeeds,
        AskUserHandler as AskUserHandler,
        McpServer as McpServer,
        NeedsModelCalls as NeedsModelCalls,
        Role as Role,
        Session as Session,
        SessionSnapshot as SessionSnapshot,
        SessionState as SessionState,
        StepActivity as StepActivity,
        StepHandler as StepHandler,
        SupportsActivity as SupportsActivity,
        SupportsCallForks as SupportsCallForks,
        ToolActivity as ToolActivity,
    )
    from .ask import (
        Answer as Answer,
        Ask as Ask,
        AskChannel as AskChannel,
        AskKind as AskKind,
        AskOption as AskOption,
        Question as Question,
    )
    from .base import (
        BaseEnvironment as BaseEnvironment,
        BaseProvider as BaseProvider,
        BaseSandbox as BaseSandbox,
        refuse_unsupported as refuse_unsupported,
    )
    from .base_agent import BaseAgent as BaseAgent, BaseSession as BaseSession
    from .bundle import Bundle as Bundle
    from .cause import (
        Cause as Cause,
        SupportsHostShortage as SupportsHostShortage,
        blame as blame,
        caused_inside as caused_inside,
        caused_outside as caused_outside,
        expect_host as expect_host,
        host_error as host_error,
        host_is_short as host_is_short,
    )
    from .changed_files import (
        FileChanges as FileChanges,
        FileDiff as FileDiff,
        TracksFileChanges as TracksFileChanges,
    )
    from .container import (
        ContainerOptions as ContainerOptions,
        HostMount as HostMount,
        ServiceCondition as ServiceCondition,
    )
    from .door import (
        MODEL_DOOR as MODEL_DOOR,
        Door as Door,
        DoorPath as DoorPath,
        DoorServes as DoorServes,
        Endpoint as Endpoint,
        OutsidePath as OutsidePath,
    )
    from .environment import (
        EnvHandle as EnvHandle,
        Environment as Environment,
        EnvironmentFactory as EnvironmentFactory,
        EnvState as EnvState,
        OutsideState as OutsideState,
        ProvisionContext as ProvisionContext,
        ReadinessProbe as ReadinessProbe,
        StateRef as StateRef,
        StateSnapshot as StateSnapshot,
        TableState as TableState,
        WorldSnapshots as WorldSnapshots,
        needs_spawn as needs_spawn,
    )
    from .errors import (
        AccountError as AccountError,
        AgentError as AgentError,
        AgentExitError as AgentExitError,
        AgentProtocolError as AgentProtocolError,
        AgentTimeoutError as AgentTimeoutError,
        BenchFlowError as BenchFlowError,
        Boundary as Boundary,
        CapacityError as CapacityError,
        CostLimitError as CostLimitError,
        CredentialsError as CredentialsError,
        Culprit as Culprit,
        EnvironmentError_ as EnvironmentError_,
        EvidenceMissingError as EvidenceMissingError,
        HostError as HostError,
        ManifestError as ManifestError,
        QuotaError as QuotaError,
        ReadinessError as ReadinessError,
        ReplayDivergedError as ReplayDivergedError,
        RewardError as RewardError,
        SandboxError as SandboxError,
        SandboxFrozenError as SandboxFrozenError,
        SandboxLimitError as SandboxLimitError,
        SandboxLostError as SandboxLostError,
        SandboxTimeoutError as SandboxTimeoutError,
        SandboxUnsupportedError as SandboxUnsupportedError,
        SnapshotError as SnapshotError,
        StoreError as StoreError,
        TaskError as TaskError,
        TransferError as TransferError,
        UsageError as UsageError,
    )
    from .events import (
        Branched as Branched,
        Checkpointed as Checkpointed,
        EnvironmentCalled as EnvironmentCalled,
        Event as Event,
        NodeCredited as NodeCredited,
        NodeFailed as NodeFailed,
        NodeScored as NodeScored,
        NodeValued as NodeValued,
        Phase as Phase,
        PhaseEntered as PhaseEntered,
        QuestionAnswered as QuestionAnswered,
        QuestionOpened as QuestionOpened,
        RolloutFinished as RolloutFinished,
        RolloutStarted as RolloutStarted,
        SandboxMade as SandboxMade,
        StateCaptured as StateCaptured,
        StateUnavailable as StateUnavailable,
        StepFinished as StepFinished,
        StepStarted as StepStarted,
        ToolCallEnded as ToolCallEnded,
        ToolCallStarted as ToolCallStarted,
        TurnStarted as TurnStarted,
        UsageReported as UsageReported,
        WorldClosed as WorldClosed,
        event_adapter as event_adapter,
    )
    from .exporter import (
        Exported as Exported,
        Exporter as Exporter,
        FinishedRollout as FinishedRollout,
        Importer as Importer,
        LeafWriter as LeafWriter,
        StreamsLeaves as StreamsLeaves,
        TakesTrainingOptions as TakesTrainingOptions,
        begin_export as begin_export,
    )
    from .factories import (
        AgentFactory as AgentFactory,
        BackendFactory as BackendFactory,
        EnvironmentLoader as EnvironmentLoader,
        ExporterFactory as ExporterFactory,
        FetchingProviderFactory as FetchingProviderFactory,
        RewardFactory as RewardFactory,
        SandboxProviderFactory as SandboxProviderFactory,
        SupportsTask as SupportsTask,
        TaskAdapterFactory as TaskAdapterFactory,
    )
    from .gateway import (
        CallBudget as CallBudget,
        CallGate as CallGate,
        KnowsReach as KnowsReach,
        ModelApi as ModelApi,
        ModelCall as ModelCall,
        ModelGateway as ModelGateway,
        ModelRoute as ModelRoute,
        PendingCall as PendingCall,
        PolicyEndpoint as PolicyEndpoint,
        RoutedExperts as RoutedExperts,
        SupportsCallGate as SupportsCallGate,
        SupportsCallReports as SupportsCallReports,
        SupportsMessages as SupportsMessages,
        SupportsPublicAccess as SupportsPublicAccess,
        UpstreamAnswer as UpstreamAnswer,
    )
    from .identity import RolloutIdentity as RolloutIdentity
    from .image import (
        ImageRecipe as ImageRecipe,
        PullPolicy as PullPolicy,
    )
    from .job import (
        AttemptEvent as AttemptEvent,
        Clock as Clock,
        Completion as Completion,
        CompletionStatus as CompletionStatus,
        Dispatch as Dispatch,
        EvidenceStore as EvidenceStore,
        Executor as Executor,
        FileRef as FileRef,
        JobStore as JobStore,
        ResizableBackend as ResizableBackend,
        Ticket as Ticket,
        WorkerBackend as WorkerBackend,
    )
    from .judge import (
        JudgeModel as JudgeModel,
        JudgeUse as JudgeUse,
    )
    from .limits import (
        ResourceKind as ResourceKind,
        ResourceLimits as ResourceLimits,
    )
    from .network_switch import SupportsNetworkSwitch as SupportsNetworkSwitch
    from .observed import (
        ObservedFiles as ObservedFiles,
        ObservedProcess as ObservedProcess,
        OpenedFile as OpenedFile,
        SupportsFileObservation as SupportsFileObservation,
    )
    from .outside import (
        OutsideWorld as OutsideWorld,
        WorldCall as WorldCall,
        WorldCallHandler as WorldCallHandler,
        outside_world as outside_world,
    )
    from .process import (
        ByteReader as ByteReader,
        ByteWriter as ByteWriter,
        Process as Process,
    )
    from .reward import (
        Evidence as Evidence,
        GroupReward as GroupReward,
        LiveWorld as LiveWorld,
        Reward as Reward,
        SupportsJudge as SupportsJudge,
        needs_all_members as needs_all_members,
        needs_processes as needs_processes,
        stops_processes as stops_processes,
    )
    from .rollout_record import (
        BeganFrom as BeganFrom,
        LearnerUse as LearnerUse,
        LearnerVersion as LearnerVersion,
        Prior as Prior,
        RolloutRecord as RolloutRecord,
    )
    from .sample import (
        AdvantageEstimator as AdvantageEstimator,
        AnswerSource as AnswerSource,
        Sample as Sample,
        SampleGroup as SampleGroup,
        SampleSpan as SampleSpan,
        SharedPrefix as SharedPrefix,
        SpanKind as SpanKind,
        TokenSequence as TokenSequence,
        TrainingOptions as TrainingOptions,
    )
    from .sandbox import (
        ExecResult as ExecResult,
        FreezeLevel as FreezeLevel,
        HasDoors as HasDoors,
        HasImageDigests as HasImageDigests,
        Isolation as Isolation,
        NetworkMode as NetworkMode,
        Sandbox as Sandbox,
        SandboxCapabilities as SandboxCapabilities,
        SandboxImage as SandboxImage,
        SandboxProvider as SandboxProvider,
        SandboxSpec as SandboxSpec,
        SnapshotConsistency as SnapshotConsistency,
        SnapshotLevel as SnapshotLevel,
        SupportsEntrypoint as SupportsEntrypoint,
        SupportsFileDigests as SupportsFileDigests,
        SupportsKillAll as SupportsKillAll,
        SupportsTcpConnect as SupportsTcpConnect,
    )
    from .sandbox_record import (
        HEARTBEAT_EXPIRY_SEC as HEARTBEAT_EXPIRY_SEC,
        HEARTBEAT_SEC as HEARTBEAT_SEC,
        Owner as Owner,
        ReapPolicy as ReapPolicy,
        SandboxRecord as SandboxRecord,
    )
    from .service import (
        ServiceHealth as ServiceHealth,
        ServiceSpec as ServiceSpec,
    )
    from .services_support import SupportsServices as SupportsServices
    from .step import (
        Observation as Observation,
        Step as Step,
        StopReason as StopReason,
        ToolCall as ToolCall,
        ToolStatus as ToolStatus,
        Usage as Usage,
    )
    from .task import (
        IMAGE_NAME as IMAGE_NAME,
        Artifact as Artifact,
        CollectCommand as CollectCommand,
        Healthcheck as Healthcheck,
        ScriptedAnswer as ScriptedAnswer,
        SetupCommand as SetupCommand,
        Task as Task,
        TaskAgent as TaskAgent,
        TaskConfig as TaskConfig,
        TaskEnvironment as TaskEnvironment,
        TaskParts as TaskParts,
        TaskSolution as TaskSolution,
        TaskStep as TaskStep,
        TaskUser as TaskUser,
        TaskVerifier as TaskVerifier,
    )
    from .task_listing import (
        AdapterOptions as AdapterOptions,
        DataTask as DataTask,
        ListedTask as ListedTask,
        TaskAdapter as TaskAdapter,
        TaskRefusal as TaskRefusal,
        TaskSource as TaskSource,
        TaskSplit as TaskSplit,
    )
    from .tree import (
        BranchRecord as BranchRecord,
        Credit as Credit,
        Fidelity as Fidelity,
        NodeError as NodeError,
        RolloutNode as RolloutNode,
        RolloutTree as RolloutTree,
        Status as Status,
        Trajectory as Trajectory,
        Value as Value,
        Weighting as Weighting,
    )
    from .user import HasAnswerProbabilities as HasAnswerProbabilities, UserModel as UserModel
    from .verdict import (
        NO_REWARDS as NO_REWARDS,
        TAMPERED as TAMPERED,
        Grading as Grading,
        Granularity as Granularity,
        Integrity as Integrity,
        RewardEvent as RewardEvent,
        RewardFiles as RewardFiles,
        Space as Space,
        VerifyResult as VerifyResult,
    )

_HOMES = {
    name: module
    for module, names in {
        "_model": "Model RareModel",
        "agent": (
            "Activity ActivityHandler Agent AgentCapabilities AgentNeeds AskUserHandler "
            "McpServer NeedsModelCalls Role Session SessionSnapshot SessionState StepActivity "
            "StepHandler SupportsActivity SupportsCallForks ToolActivity"
        ),
        "ask": "Answer Ask AskChannel AskKind AskOption Question",
        "base": "BaseEnvironment BaseProvider BaseSandbox refuse_unsupported",
        "base_agent": "BaseAgent BaseSession",
        "bundle": "Bundle",
        "cause": (
            "Cause SupportsHostShortage blame caused_inside caused_outside expect_host "
            "host_error host_is_short"
        ),
        "changed_files": "FileChanges FileDiff TracksFileChanges",
        "container": "ContainerOptions HostMount ServiceCondition",
        "door": "MODEL_DOOR Door DoorPath DoorServes Endpoint OutsidePath",
        "environment": (
            "EnvHandle Environment EnvironmentFactory EnvState OutsideState ProvisionContext "
            "ReadinessProbe StateRef StateSnapshot TableState WorldSnapshots needs_spawn"
        ),
        "errors": (
            "AccountError AgentError AgentExitError AgentProtocolError AgentTimeoutError "
            "BenchFlowError Boundary CapacityError CostLimitError CredentialsError "
            "Culprit EnvironmentError_ EvidenceMissingError HostError ManifestError "
            "QuotaError ReadinessError ReplayDivergedError RewardError SandboxError "
            "SandboxFrozenError SandboxLimitError SandboxLostError SandboxTimeoutError "
            "SandboxUnsupportedError SnapshotError StoreError TaskError TransferError "
            "UsageError"
        ),
        "events": (
            "Branched Checkpointed EnvironmentCalled Event NodeCredited NodeFailed NodeScored "
            "NodeValued Phase PhaseEntered QuestionAnswered QuestionOpened RolloutFinished "
            "RolloutStarted SandboxMade StateCaptured StateUnavailable StepFinished "
            "StepStarted ToolCallEnded ToolCallStarted TurnStarted UsageReported "
            "WorldClosed event_adapter"
        ),
        "exporter": (
            "Exported Exporter FinishedRollout Importer LeafWriter StreamsLeaves "
            "TakesTrainingOptions begin_export"
        ),
        "factories": (
            "AgentFactory BackendFactory EnvironmentLoader ExporterFactory "
            "FetchingProviderFactory RewardFactory SandboxProviderFactory SupportsTask "
            "TaskAdapterFactory"
        ),
        "gateway": (
            "CallBudget CallGate KnowsReach ModelApi ModelCall ModelGateway ModelRoute PendingCall "
            "PolicyEndpoint RoutedExperts SupportsCallGate SupportsCallReports SupportsMessages"
            " SupportsPublicAccess UpstreamAnswer"
        ),
        "identity": "RolloutIdentity",
        "image": "ImageRecipe PullPolicy",
        "job": (
            "AttemptEvent Clock Completion CompletionStatus Dispatch EvidenceStore "
            "Executor FileRef JobStore ResizableBackend Ticket WorkerBackend"
        ),
        "judge": "JudgeModel JudgeUse",
        "limits": "ResourceKind ResourceLimits",
        "network_switch": "SupportsNetworkSwitch",
        "observed": "ObservedFiles ObservedProcess OpenedFile SupportsFileObservation",
        "outside": ("OutsideWorld WorldCall WorldCallHandler outside_world"),
        "process": "ByteReader ByteWriter Process",
        "reward": (
            "Evidence GroupReward LiveWorld Reward SupportsJudge needs_all_members needs_processes "
            "stops_processes"
        ),
        "rollout_record": "BeganFrom LearnerUse LearnerVersion Prior RolloutRecord",
        "sample": (
            "AdvantageEstimator AnswerSource Sample SampleGroup SampleSpan SharedPrefix SpanKind "
            "TokenSequence TrainingOptions"
        ),
        "sandbox": (
            "ExecResult FreezeLevel HasDoors HasImageDigests Isolation NetworkMode "
            "Sandbox SandboxCapabilities SandboxImage SandboxProvider SandboxSpec "
            "SnapshotConsistency SnapshotLevel SupportsEntrypoint SupportsFileDigests "
            "SupportsKillAll SupportsTcpConnect"
        ),
        "sandbox_record": "HEARTBEAT_EXPIRY_SEC HEARTBEAT_SEC Owner ReapPolicy SandboxRecord",
        "service": "ServiceHealth ServiceSpec",
        "services_support": "SupportsServices",
        "step": "Observation Step StopReason ToolCall ToolStatus Usage",
        "task": (
            "IMAGE_NAME Artifact CollectCommand Healthcheck ScriptedAnswer SetupCommand "
            "Task TaskAgent TaskConfig TaskEnvironment TaskParts TaskSolution TaskStep "
            "TaskUser TaskVerifier"
        ),
        "task_listing": (
            "AdapterOptions DataTask ListedTask TaskAdapter TaskRefusal TaskSource TaskSplit"
        ),
        "tree": (
            "BranchRecord Credit Fidelity NodeError RolloutNode RolloutTree Status Trajectory "
            "Value Weighting"
        ),
        "user": "HasAnswerProbabilities UserModel",
        "verdict": (
            "NO_REWARDS TAMPERED Grading Granularity Integrity RewardEvent RewardFiles "
            "Space VerifyResult"
        ),
    }.items()
    for name in names.split()
}
"""The module of each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
